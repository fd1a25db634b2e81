//! The pipeline against an honest tail under random interleavings, and against impossible verdicts.

mod drafting;
mod late;
mod random;
mod stubborn;
mod table;
mod tail;
