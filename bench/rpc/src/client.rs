//! The side that asks: the layers on its devices, one token after another for one or several sequences.
//!
//! Each line of standard input is a number of tokens to generate and then the prompts, each a `/` and its tokens, all
//! separated by blanks. Each is answered by a line: the milliseconds of all of it, the mean milliseconds of a step after
//! the first, then the answers in the same way. Every step gives each sequence one token.

use std::ffi::CString;
use std::io::{BufRead as _, Write as _};
use std::ptr;
use std::time::Instant;

use llama_cpp_sys_2 as sys;

use crate::ggml_backend_rpc_add_server;

/// Positions of a sequence: the longest prompt of the benchmark and its answer.
const POSITIONS: u32 = 1024;
/// What stands before each sequence's tokens.
const BEGIN: &str = "/";

/// What of a model is computed where, and for how many.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Layers left to the servers.
    pub(crate) layers: i32,
    /// Sequences at once.
    pub(crate) n_seq: u32,
    /// Threads of this process.
    pub(crate) threads: i32,
}

/// `endpoints` are separated by commas; none if it is empty.
pub(crate) fn run(model: &str, endpoints: &str, shape: Shape) -> Result<(), String> {
    let mut line = Line::open(model, endpoints, shape)?;
    println!("ready");
    for asked in std::io::stdin().lock().lines() {
        let asked = asked.map_err(|error| error.to_string())?;
        let mut words = asked.split_whitespace();
        let n = words.next().and_then(|word| word.parse().ok()).ok_or("a request begins with a number")?;
        let mut prompts: Vec<Vec<i32>> = Vec::new();
        for word in words {
            if word == BEGIN {
                prompts.push(Vec::new());
            } else {
                let token = word.parse().map_err(|_| format!("{word} is no token"))?;
                prompts.last_mut().ok_or("a prompt begins with /")?.push(token);
            }
        }
        let start = Instant::now();
        let (step, answers) = line.generate(&prompts, n)?;
        let all = start.elapsed().as_secs_f64() * 1e3;
        let words = answers.iter().flat_map(|answer| {
            std::iter::once(BEGIN.to_owned()).chain(answer.iter().map(ToString::to_string))
        });
        println!("{all} {step} {}", words.collect::<Vec<_>>().join(" "));
        std::io::stdout().flush().map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Model and context; freed with the process, which does nothing else.
struct Line {
    context: *mut sys::llama_context,
    n_vocab: usize,
    batch: sys::llama_batch,
    n_seq: u32,
}

/// One row of a batch.
struct Row {
    token: i32,
    position: usize,
    seq: usize,
    wanted: bool,
}

impl Line {
    fn open(model: &str, endpoints: &str, shape: Shape) -> Result<Self, String> {
        let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let model = text(model)?;
        // SAFETY: called once, before anything else of llama.cpp.
        unsafe { sys::llama_backend_init() };
        let mut devices = Vec::new();
        for endpoint in endpoints.split(',').filter(|endpoint| !endpoint.is_empty()) {
            let endpoint = text(endpoint)?;
            // SAFETY: the string ends with a zero.
            let server = unsafe { ggml_backend_rpc_add_server(endpoint.as_ptr()) };
            if server.is_null() {
                return Err("a server does not answer".into());
            }
            // SAFETY: the registry entry is live and has one device, as the server was started with one.
            devices.push(unsafe { sys::ggml_backend_reg_dev_get(server, 0) });
        }
        // Equal shares.
        // SAFETY: takes nothing, gives a number.
        let shares = vec![1.0_f32; unsafe { sys::llama_max_devices() }.max(devices.len())];
        devices.push(ptr::null_mut());
        // SAFETY: returns a struct by value.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.devices = devices.as_mut_ptr();
        params.n_gpu_layers = shape.layers;
        params.tensor_split = shares.as_ptr();
        // SAFETY: the string ends with a zero, the list of devices with a null, and both outlive the call, as do the shares,
        // of which there are as many as llama.cpp reads.
        let model = unsafe { sys::llama_model_load_from_file(model.as_ptr(), params) };
        if model.is_null() {
            return Err("the model could not be loaded".into());
        }
        // SAFETY: returns a struct by value.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = POSITIONS * shape.n_seq;
        params.n_seq_max = shape.n_seq;
        params.n_batch = POSITIONS;
        params.n_threads = shape.threads;
        params.n_threads_batch = shape.threads;
        // SAFETY: the model is live and is never freed.
        let (context, n_vocab) = unsafe {
            let vocab = sys::llama_model_get_vocab(model);
            (sys::llama_init_from_model(model, params), sys::llama_vocab_n_tokens(vocab))
        };
        if context.is_null() {
            return Err("there is no memory for a context".into());
        }
        // SAFETY: the batch is never freed; it has room for as many rows as one call may have, of one sequence each.
        let batch = unsafe { sys::llama_batch_init(POSITIONS.cast_signed(), 0, 1) };
        Ok(Self { context, n_vocab: n_vocab.unsigned_abs() as usize, batch, n_seq: shape.n_seq })
    }

    /// Greedy tokens of each prompt, and the mean time of a step after the first in milliseconds.
    fn generate(&mut self, prompts: &[Vec<i32>], n: usize) -> Result<(f64, Vec<Vec<i32>>), String> {
        let fits = |prompt: &Vec<i32>| !prompt.is_empty() && prompt.len() + n <= POSITIONS as usize;
        if prompts.is_empty() || prompts.len() > self.n_seq as usize || n == 0 || !prompts.iter().all(fits) {
            return Err("these prompts do not fit".into());
        }
        // SAFETY: the context is live, and its memory belongs to it.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.context), true) };
        let mut answers = Vec::new();
        for (seq, prompt) in prompts.iter().enumerate() {
            let last = prompt.len() - 1;
            let row = |(position, &token)| Row { token, position, seq, wanted: position == last };
            let rows: Vec<Row> = prompt.iter().enumerate().map(row).collect();
            answers.push(self.decode(&rows)?);
        }
        let start = Instant::now();
        for step in 1..n {
            let row = |(seq, answer): (usize, &Vec<i32>)| Row {
                token: answer[step - 1],
                position: prompts[seq].len() + step - 1,
                seq,
                wanted: true,
            };
            let rows: Vec<Row> = answers.iter().enumerate().map(row).collect();
            for (answer, token) in answers.iter_mut().zip(self.decode(&rows)?) {
                answer.push(token);
            }
        }
        let steps = (n - 1).max(1) as f64;
        Ok((start.elapsed().as_secs_f64() * 1e3 / steps, answers))
    }

    /// The most likely token after each wanted row.
    fn decode(&mut self, rows: &[Row]) -> Result<Vec<i32>, String> {
        for (at, row) in rows.iter().enumerate() {
            let number = |n: usize| i32::try_from(n).map_err(|error| error.to_string());
            // SAFETY: the batch has room for POSITIONS rows of one sequence each, and there are no more.
            unsafe {
                *self.batch.token.add(at) = row.token;
                *self.batch.pos.add(at) = number(row.position)?;
                *self.batch.n_seq_id.add(at) = 1;
                **self.batch.seq_id.add(at) = number(row.seq)?;
                *self.batch.logits.add(at) = row.wanted.into();
            }
        }
        self.batch.n_tokens = i32::try_from(rows.len()).map_err(|error| error.to_string())?;
        // SAFETY: the context is live; the batch is filled.
        let failed = unsafe { sys::llama_decode(self.context, self.batch) };
        if failed != 0 {
            return Err(format!("llama.cpp refused a batch: {failed}"));
        }
        let wanted = rows.iter().enumerate().filter(|(_, row)| row.wanted);
        wanted.map(|(at, _)| self.best(at)).collect()
    }

    fn best(&self, row: usize) -> Result<i32, String> {
        let row = i32::try_from(row).map_err(|error| error.to_string())?;
        // SAFETY: the context is live and has just computed this row with an output.
        let logits = unsafe { sys::llama_get_logits_ith(self.context, row) };
        if logits.is_null() {
            return Err("llama.cpp gave no logits".into());
        }
        // SAFETY: the answer points to `n_vocab` floats that stay unchanged until the next decode.
        let logits = unsafe { std::slice::from_raw_parts(logits, self.n_vocab) };
        let best = (1..logits.len()).fold(0, |best, at| if logits[at] > logits[best] { at } else { best });
        i32::try_from(best).map_err(|error| error.to_string())
    }
}
