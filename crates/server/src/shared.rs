//! System prompts that the operator has named: what was computed of them serves everybody, whatever key they have.
//!
//! What one caller's prompts left behind is never used for another's, since the time of an answer would tell what was
//! asked before. Prompts that the operator names are no secret between callers. The first request that begins with one has
//! the line compute it for the server itself, in a namespace of its own, and goes on from that like everybody after it.
//!
//! Owns: the tokens of each, and whether the line is believed to hold them. The line may give them up like any other
//! prefix; the next request finds out, and the one after it has them computed again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use protocol::Token;
use scheduler::{Event, LEAST_PREFIX, Request, SHARED};
use serde_json::{Map, Value};

use crate::api::{Api, Model};
use crate::prompt;
use crate::template::Conversation;

/// After so many vain attempts in a row the line is taken to be unable to share.
const MOST_VAIN: u8 = 3;

/// The prompts that everybody may share.
#[derive(Debug, Default)]
pub(crate) struct SharedPrompts(Vec<Arc<SharedPrompt>>);

/// One of them.
#[derive(Debug)]
pub(crate) struct SharedPrompt {
    tokens: Vec<Token>,
    is_here: AtomicBool,
    /// How often in a row it was computed and then served nobody.
    vain: AtomicU8,
}

impl SharedPrompts {
    /// What chats begin with whose system prompt is one of `texts`. Those that the template has no place for, or that are
    /// too short to matter, are told and left out.
    pub(crate) fn new(texts: &[String], model: &Model) -> Self {
        let beginning = |text: &String| {
            // Whatever the user says: what two conversations have in common that differ from its first letter on.
            let written = ["A", "zebra"].map(|said| {
                let written = prompt::text_of(model, &conversation(text, said), prompt::now());
                written.map(|text| prompt::tokenise(model, &text))
            });
            match written {
                [Ok(one), Ok(other)] => Ok(one
                    .into_iter()
                    .zip(other)
                    .take_while(|(a, b)| a == b)
                    .map(|(token, _)| token)
                    .collect()),
                [Err(error), _] | [_, Err(error)] => Err(error.to_string()),
            }
        };
        let judged = texts.iter().enumerate().filter_map(|(at, text)| {
            let tokens: Vec<Token> = match beginning(text) {
                Ok(tokens) => tokens,
                Err(error) => {
                    tracing::warn!(
                        prompt = at,
                        error,
                        "the model's template does not write this shared prompt"
                    );
                    return None;
                }
            };
            if tokens.len() < LEAST_PREFIX {
                tracing::warn!(
                    prompt = at,
                    tokens = tokens.len(),
                    "this shared prompt is too short to be shared"
                );
                return None;
            }
            let (is_here, vain) = (AtomicBool::new(false), AtomicU8::new(0));
            Some(Arc::new(SharedPrompt { tokens, is_here, vain }))
        });
        Self(judged.collect())
    }

    /// The longest one that a prompt begins with.
    pub(crate) fn of(&self, prompt: &[Token]) -> Option<&Arc<SharedPrompt>> {
        let fitting = self.0.iter().filter(|shared| prompt.starts_with(&shared.tokens));
        fitting.max_by_key(|shared| shared.tokens.len())
    }
}

impl SharedPrompt {
    /// A request that begins with it is about to be submitted: has it computed first, unless the line has it.
    pub(crate) async fn prepare(self: &Arc<Self>, api: &Api, client: u64, priority: i32) {
        if self.vain.load(Ordering::Relaxed) >= MOST_VAIN || self.is_here.swap(true, Ordering::Relaxed) {
            return;
        }
        let request = Request {
            max_tokens: Some(1),
            ignore_eos: true,
            client,
            priority,
            namespace: Some(SHARED),
            ..Request::new(self.tokens.clone())
        };
        let Ok(mut submission) = api.line().submit(request, None).await else {
            // A full queue: another time.
            self.is_here.store(false, Ordering::Relaxed);
            return;
        };
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let mut is_done = false;
            while let Some(event) = submission.next().await {
                is_done |= matches!(event, Event::Done { .. });
            }
            if !is_done {
                shared.is_here.store(false, Ordering::Relaxed);
            }
        });
    }

    /// A request that begins with it has been told how much of its prompt was known.
    pub(crate) fn served(&self, cached: u32, n_prompt: usize) {
        let most = self.tokens.len().min(n_prompt.saturating_sub(1));
        // Whoever comes while it is computed shares all but its last token.
        if cached as usize + 1 >= most {
            self.vain.store(0, Ordering::Relaxed);
        } else if self.is_here.swap(false, Ordering::Relaxed) {
            self.vain.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn conversation(system: &str, user: &str) -> Conversation {
    let message = |role: &str, content: &str| {
        let fields = [("role", role), ("content", content)];
        fields.map(|(name, text)| (name.to_owned(), Value::from(text))).into_iter().collect::<Map<_, _>>()
    };
    Conversation {
        messages: vec![message("system", system), message("user", user)],
        tools: Vec::new(),
        add_generation_prompt: true,
        variables: Map::new(),
    }
}
