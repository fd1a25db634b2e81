//! Architectures that cannot be cut, and why: values cross layers, or constants cannot be set from outside.

/// Names and the reason, worded to follow "cannot be cut into stages:".
pub(super) const REASONS: &[(&[&str], &str)] = &[
    (&["gemma3n"], "its layers also take inputs made from token ids and share keys and values"),
    (&["grovemoe"], "llama.cpp writes past a list of rows where a token chooses two experts of one group"),
    (&["minimax-01"], "the decay of its lightning attention follows from the layer's index and count"),
    (&["muse-glimmer", "talkie"], "llama.cpp normalises the input of every graph"),
    (&["nanbeige"], "its layers may run several times over"),
    (&["rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"], "the first layer's values are mixed into all layers"),
    (
        &["deepseek4", "qwen4exp", "glm5-next", "hy_v4"],
        "several residual streams run between its layers, and a graph takes only one",
    ),
    (&["kimi-k3"], "residuals of earlier blocks are mixed into later ones"),
    (&["hrm_text"], "it is recurrent over its layers"),
    (&["plamo2"], "llama.cpp did not finish a call of a small model of it"),
    (&["chameleon", "plm"], "no small model of it could be made that llama.cpp runs"),
    (&["cogvlm"], "llama.cpp takes rows for image features"),
    (&["graniteswitch"], "its graph takes tokens only"),
    (
        &["eagle3", "dflash", "gemma4-assistant", "clef"],
        "it drafts for another model and does not answer by itself",
    ),
    (
        &[
            "bert",
            "modern-bert",
            "nomic-bert",
            "nomic-bert-moe",
            "neo-bert",
            "jina-bert-v2",
            "jina-bert-v3",
            "eurobert",
            "gemma-embedding",
            "llama-embed",
            "t5",
            "t5encoder",
            "clip",
        ],
        "it encodes text and does not answer",
    ),
    (&["llada", "llada-moe", "dream", "rnd1"], "it fills in tokens by diffusion, not from left to right"),
    (&["wavtokenizer-dec", "qwen3tts", "pockettts"], "it makes sound"),
];
