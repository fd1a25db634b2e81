//! Guesses never change an answer: the scheduler, the stages' state machine, the real engine and its samplers together,
//! in one process and in virtual time, against a loop that decodes one token after the other.

mod distribution;
mod grammar;
mod line;
mod penalties;
mod plain;
mod real;
mod recurrent;
