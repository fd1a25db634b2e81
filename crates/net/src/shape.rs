//! Skeleton.
/// How a link is slowed down, one way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape(());
/// Text that is no shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("placeholder")]
pub struct ShapeError;
impl std::str::FromStr for Shape {
    type Err = ShapeError;
    fn from_str(_s: &str) -> Result<Self, ShapeError> {
        unimplemented!()
    }
}
