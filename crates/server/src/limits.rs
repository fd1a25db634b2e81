//! Upper bounds on what a client may send and on how long the API waits for it.

use std::time::Duration;

/// Bytes in a request body. The longest contexts in use (10 M tokens) do not fit on machines like ours; 16 MiB is
/// about 4 M tokens of English.
pub(crate) const MAX_BODY_BYTES: usize = 16 << 20;
/// How long a client may take to send its body: 16 MiB at a slow 3 Mbit/s.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(60);
/// Messages in one chat: an agent's longest conversations have some hundreds.
pub(crate) const MAX_MESSAGES: usize = 4096;
/// Tools of one request: OpenAI's limit is 128, clients of many MCP servers send more.
pub(crate) const MAX_TOOLS: usize = 1024;
/// Bytes in the name of a tool: OpenAI allows 64, MCP 128.
pub(crate) const MAX_TOOL_NAME: usize = 128;
/// Responses kept for later requests, and their bytes: some hundred long conversations.
pub(crate) const MAX_RESPONSES: usize = 1024;
pub(crate) const MAX_RESPONSES_BYTES: usize = 64 << 20;
/// Choices of one request, prompts times `n`: OpenAI's limit on `n`.
pub(crate) const MAX_CHOICES: usize = 128;
/// Texts in one request for embeddings: OpenAI's limit.
pub(crate) const MAX_INPUTS: usize = 2048;
/// Numbers in one answer with embeddings: as many texts of a model with 8192 values per row, 64 MiB.
pub(crate) const MAX_EMBEDDING_VALUES: u64 = 16 << 20;
/// Texts of one request for embeddings that are on the line or wait for it: as many as keep a large line busy, and a
/// quarter of the queue.
pub(crate) const EMBEDDINGS_AT_ONCE: usize = 32;
/// Stop strings. OpenAI allows 4, clients of llama.cpp send a dozen.
pub(crate) const MAX_STOPS: usize = 32;
/// Bytes in one stop string; bounds the text held back and the work per token.
pub(crate) const MAX_STOP_BYTES: usize = 256;
/// Bytes in one DRY sequence breaker: a few tokens.
pub(crate) const MAX_BREAKER_BYTES: usize = 64;
/// Bytes of a client's `x-request-id`; longer ones are replaced. A UUID has 36.
pub(crate) const MAX_REQUEST_ID: usize = 128;
/// How long to wait for the line's last word on a request that was cancelled because its text is complete. The line
/// answers at once; if it does not, the answer goes out without the line's figures.
pub(crate) const CANCEL_WAIT: Duration = Duration::from_millis(500);
/// Between two keep-alive comments on a silent stream; proxies close idle connections after 30 s or more.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Text up to this size is tokenised on the spot; more goes to a thread of its own, so that other streams flow on.
/// llama.cpp tokenises some MB/s, so this is about 10 ms.
pub(crate) const TOKENISE_INLINE_BYTES: usize = 32 << 10;
/// Instructions of a chat template; a long conversation takes some hundred thousand.
pub(crate) const TEMPLATE_FUEL: u64 = 10_000_000;
/// Bytes that a chat template may write: far more than fits into a body, which templates repeat at most twice.
pub(crate) const MAX_TEMPLATE_BYTES: usize = 4 * MAX_BODY_BYTES;
/// How long it may take to look at a grammar: a hundred times what a large one needs.
pub(crate) const GRAMMAR_TIME: Duration = Duration::from_secs(5);
/// Grammars looked at at once.
pub(crate) const GRAMMAR_PLACES: usize = 2;
/// Texts that an answer may be chosen from.
pub(crate) const MAX_CHOICE_TEXTS: usize = 1024;
/// Bytes in an API key file: thousands of keys.
pub(crate) const MAX_KEY_FILE_BYTES: u64 = 1 << 20;
/// API keys in it; all of them are compared with the key of every request, which takes some 100 µs for so many.
pub(crate) const MAX_KEYS: usize = 10_000;
/// Bytes in a file of certificates or of a private key: a chain has some KiB.
pub(crate) const MAX_PEM_BYTES: u64 = 1 << 20;
/// Connections at once: the queue and the running requests are far fewer, the rest are idle or hostile.
pub(crate) const MAX_CONNECTIONS: usize = 1024;
/// Connections beyond those that are told so at once; any more are closed without a word.
pub(crate) const MAX_REFUSALS: usize = 64;
/// How long a refused client may take to read its refusal.
pub(crate) const REFUSAL_TIME: Duration = Duration::from_secs(2);
/// How long a client may take to send the head of a request, or keep a connection without one.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(30);
/// How long a client may leave unread what is there for it.
pub(crate) const WRITE_TIME: Duration = Duration::from_secs(60);
/// How long a TLS handshake may take: a few round trips over the slowest network.
pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Bytes in the head of a request, path included: proxies and browsers send a few KiB.
pub(crate) const MAX_HEAD_BYTES: usize = 32 << 10;
/// Headers of a request: behind several proxies there are some thirty.
pub(crate) const MAX_HEADERS: usize = 100;
/// Where reading a head stops, in multiples of the two limits above: up to there a client hears which one it broke.
pub(crate) const HEAD_SLACK: usize = 2;
/// Before the next attempt to accept a connection when the system has no place for it, as axum has it.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Readers of `/v1/line/events` at once: each looks at the line some times a second.
pub(crate) const MAX_WATCHERS: usize = 32;
/// Between two looks for one of them; with three kinds of events that makes ten a second at most.
pub(crate) const WATCH_EVERY: Duration = Duration::from_millis(300);
/// After the last request is over the line is looked at once more: its stages' busy shares are of the last two seconds.
pub(crate) const WATCH_SETTLED: Duration = Duration::from_millis(4500);
/// Movements in one event.
pub(crate) const MAX_MOVEMENTS: usize = 512;
/// Requests that ended and are still shown.
pub(crate) const MAX_ENDED: usize = 20;
/// `Retry-After` of what is full and of a line that is not ready, seconds: about the time of a short answer.
pub(crate) const RETRY_AFTER: u32 = 1;
