//! Fronts and stages over real TLS links, with engines that compute nothing.

mod by_hand;
mod line;
mod recovery;
mod refusals;
mod support;
