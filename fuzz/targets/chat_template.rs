//! Chat templates, as they come with a model file, over some conversations.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|source: &str| fuzz::chat_template(source));
