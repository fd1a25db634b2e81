//! `rpc-bench`: plain llama.cpp with a model's layers on up to two other processes, over its RPC back end.
//!
//! Three roles, each a process of its own: `server` computes what it is sent; `delay` stands between and lets every byte
//! wait, as a slow network would; `client` holds the layers that it leaves to no server, decodes greedily, and measures.
//! A client without servers is llama.cpp with the whole model.
//! `line-bench` starts them and measures lines beside them.

mod client;
mod delay;

use std::ffi::CString;
use std::os::raw::c_char;
use std::process::ExitCode;
use std::time::Duration;

use llama_cpp_sys_2 as sys;

unsafe extern "C" {
    // From ggml-rpc.h, which the crate's bindings leave out.
    fn ggml_backend_rpc_start_server(
        endpoint: *const c_char,
        cache_dir: *const c_char,
        n_threads: usize,
        n_devices: usize,
        devices: *mut sys::ggml_backend_dev_t,
    );
    fn ggml_backend_rpc_add_server(endpoint: *const c_char) -> sys::ggml_backend_reg_t;
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["server", endpoint] => server(endpoint),
        ["delay", target, ms] => milliseconds(ms).and_then(|delay| delay::run(target, delay)),
        ["client", model, endpoints, layers, n_seq, threads] => {
            let shape = || {
                Ok(client::Shape { layers: number(layers)?, n_seq: number(n_seq)?, threads: number(threads)? })
            };
            shape().and_then(|shape| client::run(model, endpoints, shape))
        }
        _ => Err("usage: rpc-bench server HOST:PORT | delay HOST:PORT MS | client MODEL [HOST:PORT[,HOST:PORT]] LAYERS SEQUENCES THREADS".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("rpc-bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word} is no number"))
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let ms: f64 = text.parse().map_err(|_| format!("{text} is no number of milliseconds"))?;
    Duration::try_from_secs_f64(ms / 1e3).map_err(|error| error.to_string())
}

/// Computes for whoever connects, with one thread, until the process is ended.
fn server(endpoint: &str) -> Result<(), String> {
    let endpoint = CString::new(endpoint).map_err(|error| error.to_string())?;
    // SAFETY: called once, before anything else of llama.cpp.
    unsafe { sys::llama_backend_init() };
    // SAFETY: the registry is filled; the answer is null or lives as long as the process.
    let device = unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) };
    if device.is_null() {
        return Err("this build has no CPU back end".into());
    }
    let mut devices = [device];
    // SAFETY: the string ends with a zero and outlives the call; `devices` has as many entries as it is told.
    unsafe { ggml_backend_rpc_start_server(endpoint.as_ptr(), std::ptr::null(), 1, 1, devices.as_mut_ptr()) };
    Err("the server could not open its port or ended".into())
}
