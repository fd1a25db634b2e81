//! The pipeline against an honest tail under random interleavings, and against impossible verdicts.

mod late;
mod random;
mod table;
mod tail;
