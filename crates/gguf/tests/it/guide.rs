//! `docs/models.md` says what the table of architectures says.

use std::path::Path;

#[test]
fn the_guide_to_models_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
    let text = gguf::arch::guide();
    if std::env::var_os("PACELINE_WRITE_GUIDE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert!(
        found == text,
        "docs/models.md is not what the table of architectures gives: run this test with PACELINE_WRITE_GUIDE=1"
    );
}
