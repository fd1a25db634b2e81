//! The side that asks: the first layers here, the rest behind the endpoint, one token after another.
//!
//! Each line of standard input is a number of tokens to generate and the prompt's tokens, all separated by blanks. Each
//! is answered by a line: the mean milliseconds per token, then the tokens.

use std::ffi::CString;
use std::io::{BufRead as _, Write as _};
use std::ptr;
use std::time::Instant;

use llama_cpp_sys_2 as sys;

use crate::ggml_backend_rpc_add_server;

/// Positions: the longest prompt of the benchmark and its answer.
const POSITIONS: u32 = 1024;

pub(crate) fn run(model: &str, endpoint: &str, remote_layers: i32) -> Result<(), String> {
    let mut line = Line::open(model, endpoint, remote_layers)?;
    println!("ready");
    for asked in std::io::stdin().lock().lines() {
        let asked = asked.map_err(|error| error.to_string())?;
        let mut numbers = asked.split_whitespace().map(str::parse::<i32>);
        let mut next = || numbers.next().transpose().map_err(|error| error.to_string());
        let n = next()?.ok_or("an empty line is no request")?;
        let mut prompt = Vec::new();
        while let Some(token) = next()? {
            prompt.push(token);
        }
        let (ms, tokens) = line.generate(&prompt, n)?;
        let words: Vec<String> = tokens.iter().map(ToString::to_string).collect();
        println!("{ms} {}", words.join(" "));
        std::io::stdout().flush().map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Model and context; freed with the process, which does nothing else.
struct Line {
    context: *mut sys::llama_context,
    n_vocab: usize,
}

impl Line {
    fn open(model: &str, endpoint: &str, remote_layers: i32) -> Result<Self, String> {
        let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let (model, endpoint) = (text(model)?, text(endpoint)?);
        // SAFETY: called once, before anything else of llama.cpp; the string ends with a zero.
        let server = unsafe {
            sys::llama_backend_init();
            ggml_backend_rpc_add_server(endpoint.as_ptr())
        };
        if server.is_null() {
            return Err("the server does not answer".into());
        }
        // SAFETY: the registry entry is live and has one device, as the server was started with one.
        let device = unsafe { sys::ggml_backend_reg_dev_get(server, 0) };
        let mut devices = [device, ptr::null_mut()];
        // SAFETY: returns a struct by value.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.devices = devices.as_mut_ptr();
        params.n_gpu_layers = remote_layers;
        // SAFETY: the string ends with a zero, the list of devices with a null, and both outlive the call.
        let model = unsafe { sys::llama_model_load_from_file(model.as_ptr(), params) };
        if model.is_null() {
            return Err("the model could not be loaded".into());
        }
        // SAFETY: returns a struct by value.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = POSITIONS;
        params.n_batch = POSITIONS;
        params.n_threads = 1;
        params.n_threads_batch = 1;
        // SAFETY: the model is live and is never freed.
        let (context, n_vocab) = unsafe {
            let vocab = sys::llama_model_get_vocab(model);
            (sys::llama_init_from_model(model, params), sys::llama_vocab_n_tokens(vocab))
        };
        if context.is_null() {
            return Err("there is no memory for a context".into());
        }
        Ok(Self { context, n_vocab: n_vocab.unsigned_abs() as usize })
    }

    /// Greedy tokens, and the mean time of one after the first in milliseconds.
    fn generate(&mut self, prompt: &[i32], n: i32) -> Result<(f64, Vec<i32>), String> {
        // SAFETY: the context is live, and its memory belongs to it.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.context), true) };
        let mut input = prompt.to_vec();
        let (mut tokens, mut times) = (Vec::new(), Vec::new());
        for _ in 0..n {
            let start = Instant::now();
            let token = self.step(&mut input)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            tokens.push(token);
            input = vec![token];
        }
        // The first one is the prompt's.
        let rest = times.get(1..).unwrap_or_default();
        Ok((rest.iter().sum::<f64>() / rest.len().max(1) as f64, tokens))
    }

    fn step(&mut self, input: &mut [i32]) -> Result<i32, String> {
        let n = i32::try_from(input.len()).map_err(|error| error.to_string())?;
        // SAFETY: the context is live; the batch points to `n` tokens that outlive the call.
        let failed = unsafe { sys::llama_decode(self.context, sys::llama_batch_get_one(input.as_mut_ptr(), n)) };
        if failed != 0 {
            return Err(format!("llama.cpp refused a batch: {failed}"));
        }
        // SAFETY: the context is live and has just computed; -1 is the last output.
        let logits = unsafe { sys::llama_get_logits_ith(self.context, -1) };
        if logits.is_null() {
            return Err("llama.cpp gave no logits".into());
        }
        // SAFETY: the answer points to `n_vocab` floats that stay unchanged until the next decode.
        let logits = unsafe { std::slice::from_raw_parts(logits, self.n_vocab) };
        let best = (1..logits.len()).fold(0, |best, at| if logits[at] > logits[best] { at } else { best });
        i32::try_from(best).map_err(|error| error.to_string())
    }
}
