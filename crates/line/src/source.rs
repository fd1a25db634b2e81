//! Where a stage's engine comes from.

use protocol::Holding;
use stage::Engine;

/// Finds, cuts and loads a range of layers. Implemented where models and back ends are known.
pub trait EngineSource: Send + Sync + 'static {
    /// Loads what `holding` names. Runs on a thread of its own and may take minutes; it says how far it is by
    /// `progress(permille, what)`.
    ///
    /// # Errors
    /// If the model is not here, does not fit, or cannot be cut so: one sentence for people.
    fn load(
        &self,
        holding: &Holding,
        progress: &mut dyn FnMut(u16, &str),
    ) -> Result<Box<dyn Engine>, LoadError>;
}

/// Why a range of layers could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct LoadError {
    /// One sentence that says what to do.
    pub reason: String,
}
