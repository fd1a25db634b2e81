//! Starts llama.cpp once per process and takes over its log.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use llama_cpp_sys_2 as sys;

/// Bytes kept of one log line; llama.cpp's own lines are far shorter.
const MAX_LINE: usize = 4096;

/// Must be called before any other call into llama.cpp; cheap when repeated.
pub(crate) fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: llama_log_set stores a function pointer; `on_log` lives as long as the process and never unwinds.
        unsafe { sys::llama_log_set(Some(on_log), std::ptr::null_mut()) };
        // SAFETY: llama_backend_init must be called once before other calls: `Once` sees to it.
        unsafe { sys::llama_backend_init() };
    });
}

/// The instruction sets and back ends of this build on this machine, in llama.cpp's words. Machines whose words differ
/// may compute other last bits.
#[must_use]
pub fn system_info() -> String {
    init();
    // SAFETY: llama_print_system_info returns a string that lives until its next call; it is copied at once, and
    // every call fills in the same text.
    let text = unsafe { CStr::from_ptr(sys::llama_print_system_info()) };
    text.to_string_lossy().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// One line that llama.cpp is writing, and the last error it reported, on this thread.
#[derive(Default)]
struct Lines {
    level: sys::ggml_log_level,
    line: String,
    last_error: Option<String>,
    /// Complete lines that wait for [`release_log`].
    held: Option<Vec<(sys::ggml_log_level, String)>>,
}

thread_local! {
    static LINES: RefCell<Lines> = RefCell::default();
}

/// The last error line that llama.cpp wrote on this thread since the last call, as a reason for people.
pub(crate) fn take_last_error() -> String {
    LINES
        .with_borrow_mut(|lines| lines.last_error.take())
        .unwrap_or_else(|| "it gave no reason (see the log with target llama.cpp)".to_owned())
}

/// Forgets earlier errors, so that [`take_last_error`] speaks of the next call.
pub(crate) fn clear_last_error() {
    LINES.with_borrow_mut(|lines| lines.last_error = None);
}

/// Keeps what llama.cpp writes on this thread back until [`release_log`]: only then is it known how it is meant.
pub(crate) fn hold_log() {
    LINES.with_borrow_mut(|lines| lines.held = Some(Vec::new()));
}

/// Passes on what was kept back. What was `expected`, such as complaints about a call that was stopped on purpose, is no
/// warning.
pub(crate) fn release_log(expected: bool) {
    let held = LINES.with_borrow_mut(|lines| lines.held.take());
    for (level, line) in held.into_iter().flatten() {
        emit(if expected { sys::GGML_LOG_LEVEL_DEBUG } else { level }, &line);
    }
}

unsafe extern "C" fn on_log(level: sys::ggml_log_level, text: *const c_char, _user: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: ggml passes a NUL-terminated string that lives for the duration of the callback.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    // A subscriber that panics must not unwind into C; its line is lost.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let done = LINES.with(|lines| match lines.try_borrow_mut() {
            Ok(mut lines) => {
                let done = collect(&mut lines, level, &text);
                match &mut lines.held {
                    Some(held) => {
                        held.extend(done);
                        Vec::new()
                    }
                    None => done,
                }
            }
            Err(_) => Vec::new(),
        });
        for (level, line) in done {
            emit(level, &line);
        }
    }));
}

/// Adds a piece of text and returns the lines that are complete now.
fn collect(lines: &mut Lines, level: sys::ggml_log_level, text: &str) -> Vec<(sys::ggml_log_level, String)> {
    let mut done = Vec::new();
    if level != sys::GGML_LOG_LEVEL_CONT {
        lines.level = level;
    }
    for piece in text.split_inclusive('\n') {
        if lines.line.len() + piece.len() <= MAX_LINE {
            lines.line.push_str(piece.trim_end());
        }
        if piece.ends_with('\n') {
            let line = std::mem::take(&mut lines.line);
            if line.is_empty() {
                continue;
            }
            if lines.level == sys::GGML_LOG_LEVEL_ERROR {
                lines.last_error = Some(without_function(&line).to_owned());
            }
            done.push((lines.level, line));
        }
    }
    done
}

/// llama.cpp starts its lines with the C++ function's name, which says nothing to a user.
fn without_function(line: &str) -> &str {
    match line.split_once(": ") {
        Some((name, rest)) if !name.contains(' ') && name.contains('_') => rest,
        _ => line,
    }
}

fn emit(level: sys::ggml_log_level, line: &str) {
    match level {
        sys::GGML_LOG_LEVEL_ERROR => tracing::warn!(target: "llama.cpp", "{line}"),
        sys::GGML_LOG_LEVEL_WARN => tracing::info!(target: "llama.cpp", "{line}"),
        sys::GGML_LOG_LEVEL_INFO => tracing::debug!(target: "llama.cpp", "{line}"),
        _ => tracing::trace!(target: "llama.cpp", "{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_lines_and_the_last_error_is_kept() {
        let mut lines = Lines::default();
        assert!(collect(&mut lines, sys::GGML_LOG_LEVEL_INFO, "load_model: lo").is_empty());
        let done = collect(&mut lines, sys::GGML_LOG_LEVEL_CONT, "aded\nnext");
        assert_eq!(done, [(sys::GGML_LOG_LEVEL_INFO, "load_model: loaded".to_owned())]);
        assert_eq!(lines.last_error, None);
        collect(&mut lines, sys::GGML_LOG_LEVEL_CONT, "\n");
        collect(&mut lines, sys::GGML_LOG_LEVEL_ERROR, "llama_model_load: error loading: bad\n");
        assert_eq!(lines.last_error.as_deref(), Some("error loading: bad"));
    }

    #[test]
    fn what_is_written_during_a_call_waits_for_its_end_and_is_the_reason_all_the_same() {
        let held = || LINES.with_borrow(|lines| lines.held.as_ref().map(Vec::len));
        hold_log();
        // SAFETY: the text is a C string that outlives the call.
        unsafe {
            on_log(sys::GGML_LOG_LEVEL_ERROR, c"graph_compute: it failed\n".as_ptr(), std::ptr::null_mut());
        };
        assert_eq!(held(), Some(1));
        release_log(true);
        assert_eq!(held(), None);
        assert_eq!(take_last_error(), "it failed");
    }

    #[test]
    fn only_a_function_name_is_cut_off() {
        assert_eq!(without_function("gguf_init_from_file: failed to open"), "failed to open");
        assert_eq!(without_function("unknown key: x"), "unknown key: x");
    }
}
