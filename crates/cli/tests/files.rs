//! The commands that only handle files, run as a person runs them: exit codes, where output goes, what is left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A place of its own for the caches, keys and files of one test.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder can be made"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_paceline"))
            .args(args)
            .current_dir(self.0.path())
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .output()
            .expect("the binary can be started")
    }

    #[track_caller]
    fn done(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The one sentence that a failure says, after the program's name.
    #[track_caller]
    fn fails(&self, args: &[&str], code: i32) -> String {
        let output = self.run(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert_eq!(text(&output.stdout), "", "{args:?} failed but wrote to standard output");
        let lines: Vec<&str> = said.lines().collect();
        let [line] = lines[..] else { panic!("{args:?} says more than one line: {said}") };
        line.strip_prefix("paceline: ").expect("it starts with the program's name").to_owned()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Put there by `./run setup`.
fn smollm2() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/SmolLM2-135M-Instruct.Q4_1.gguf");
    path.canonicalize().expect("./run setup fetches the test models").display().to_string()
}

#[test]
fn exit_codes_tell_success_failure_and_wrong_usage_apart() {
    let home = Home::new();
    assert!(home.done(&["--version"]).starts_with("paceline 0."));
    assert!(home.done(&["--help"]).contains("Examples:"));
    for command in ["serve", "stage", "cluster", "split", "verify", "simulate"] {
        let help = home.done(&[command, "--help"]);
        assert!(help.contains("paceline "), "`{command} --help` has no example: {help}");
    }
    home.fails(&["inspect", "missing.gguf"], 1);
    home.fails(&["serve"], 2);
    home.fails(&["split", "m.gguf", "--stages", "0", "--out", "x"], 2);
    home.fails(&["serve", "m.gguf", "--log", "=x=", "--stages", "1"], 2);
    assert_eq!(home.run(&[]).status.code(), Some(2));
}

#[test]
fn configuration_errors_name_the_key() {
    let home = Home::new();
    fs::write(home.path("paceline.toml"), "[split]\nout = 'x'\nstagess = 3\n").unwrap();
    let said = home.fails(&["--config", "paceline.toml", "split", "m.gguf"], 2);
    assert!(said.contains("line 3") && said.contains("`stagess`"), "{said}");
    let said = home.fails(&["--config", "nowhere.toml", "split", "m.gguf"], 1);
    assert!(said.contains("nowhere.toml"), "{said}");
}

#[test]
fn files_that_are_no_models_are_refused_in_one_sentence() {
    let home = Home::new();
    fs::write(home.path("text.gguf"), "this is no model at all, only words").unwrap();
    let said = home.fails(&["inspect", "text.gguf"], 1);
    assert!(said.contains("text.gguf"), "{said}");
    fs::create_dir(home.path("empty")).unwrap();
    let said = home.fails(&["inspect", "empty"], 1);
    assert!(said.contains("holds no slices"), "{said}");
    let whole = fs::read(smollm2()).unwrap();
    fs::write(home.path("cut-short.gguf"), &whole[..whole.len() / 2]).unwrap();
    let said = home.fails(&["split", "cut-short.gguf", "--stages", "2", "--out", "x"], 1);
    assert!(said.contains("cut-short.gguf"), "{said}");
}

#[test]
fn split_writes_slices_that_inspect_understands() {
    let home = Home::new();
    let model = smollm2();
    let said = home.done(&["split", &model, "--cuts", "10,20", "--out", "slices"]);
    assert_eq!(said.lines().count(), 4, "{said}");
    let identity = said.split_whitespace().nth(1).unwrap().to_owned();
    let listed = home.done(&["inspect", "slices"]);
    assert!(listed.contains(&identity) && listed.contains("layers 10 to 19"), "{listed}");
    assert!(!listed.contains("MISSING"), "{listed}");
    let tail = home.done(&["inspect", "slices/layers-020-030.gguf"]);
    assert!(tail.contains("layers 20 to 29 of 30, tail") && tail.contains(&identity), "{tail}");
    let whole = home.done(&["inspect", &model]);
    assert!(
        whole.contains("llama") && whole.contains("before any layer") && whole.contains(&identity),
        "{whole}"
    );
    let said = home.fails(&["split", &model, "--cuts", "30", "--out", "slices"], 1);
    assert!(said.contains("29"), "{said}");
}

#[test]
fn a_second_split_writes_nothing() {
    let home = Home::new();
    let model = smollm2();
    let split = ["split", &model, "--stages", "3", "--out", "slices"];
    let first = home.run(&split);
    assert!(text(&first.stderr).contains("cutting the model"), "{}", text(&first.stderr));
    let second = home.run(&split);
    assert_eq!(text(&second.stderr), "");
    assert_eq!(first.stdout, second.stdout);
}

#[test]
fn a_machine_becomes_a_member_in_three_steps() {
    let (first, second) = (Home::new(), Home::new());
    let said = first.done(&["cluster", "new"]);
    assert!(said.contains("front"), "{said}");
    let said = first.fails(&["cluster", "new"], 1);
    assert!(said.contains("already"), "{said}");

    assert!(second.done(&["cluster", "show"]).contains("in no cluster"));
    second.done(&["cluster", "enroll", "--request", "second.req"]);
    assert!(second.done(&["cluster", "show"]).contains("waits for its membership"));
    fs::copy(second.path("second.req"), first.path("second.req")).unwrap();
    let said = first.done(&["cluster", "enroll", "second.req", "--days", "30"]);
    assert!(said.contains("stage"), "{said}");
    let shown = first.done(&["cluster", "show"]);
    assert!(shown.contains("member second: stage"), "{shown}");

    fs::copy(first.path("second.req.member"), second.path("second.req.member")).unwrap();
    second.done(&["cluster", "enroll", "--join", "second.req.member"]);
    let shown = second.done(&["cluster", "show"]);
    assert!(shown.contains("this machine:   stage") && shown.contains("root key:       not here"), "{shown}");
    let said = second.fails(&["cluster", "enroll", "--request", "again.req"], 1);
    assert!(said.contains("member already"), "{said}");
}

#[test]
fn a_membership_is_of_no_use_to_another_machine() {
    let (first, second, third) = (Home::new(), Home::new(), Home::new());
    first.done(&["cluster", "new"]);
    second.done(&["cluster", "enroll", "--request", "second.req"]);
    third.done(&["cluster", "enroll", "--request", "third.req"]);
    let request = second.path("second.req").display().to_string();
    first.done(&["cluster", "enroll", &request]);
    let answer = format!("{request}.member");
    let said = third.fails(&["cluster", "enroll", "--join", &answer], 1);
    assert!(said.contains("signed for"), "{said}");
    let said = second.fails(&["cluster", "enroll", &request], 1);
    assert!(said.contains("root key is not here"), "{said}");
    let said = first.fails(&["cluster", "enroll", &smollm2()], 1);
    assert!(said.contains("too large"), "{said}");
    let said = first.fails(&["cluster", "enroll", &answer, "--name", "../x"], 2);
    assert!(said.contains("letters"), "{said}");
}

#[cfg(unix)]
#[test]
fn secrets_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    home.done(&["cluster", "new"]);
    let folder = home.path("config/paceline/cluster");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("root.key")), 0o600);
    assert_eq!(mode(&folder.join("node.pem")), 0o600);
}

#[test]
fn a_simulated_line_needs_no_model_and_leaves_its_figures() {
    let home = Home::new();
    let small = ["simulate", "--stages", "2", "--tokens", "32", "--width", "1,2", "--depth", "1,4"];
    let said = home.done(&[&small[..], &["--workload", "copy", "--json", "out.json"]].concat());
    assert!(said.contains("x plain") && said.contains("copy"), "{said}");
    let figures: serde_json::Value =
        serde_json::from_slice(&fs::read(home.path("out.json")).unwrap()).unwrap();
    let rows = figures["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["speculate"] == "auto" && row["decode_tok_s"].as_f64() > Some(0.0)));
    fs::write(home.path("paceline.toml"), "[simulate]\nstages = 17\n").unwrap();
    let said = home.fails(&["--config", "paceline.toml", "simulate"], 2);
    assert!(said.contains("1 to 16 stages"), "{said}");
    home.fails(&["simulate", "--workload", "poem"], 2);
    home.fails(&["simulate", "model.gguf"], 2);
}
