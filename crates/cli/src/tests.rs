//! What may be written on the command line and in files, and what each means. The helpers touch the API, the rest is data.

use std::path::Path;

use clap::{CommandFactory as _, Parser as _};

use crate::args::{
    Asked, Cut, EnrollArgs, Place, ServeArgs, Spares, SplitArgs, StageArgs, Usage, VerifyArgs,
};
use crate::bench::args::BenchArgs;
use crate::config::{self, Config};
use crate::flags::cluster::ClusterAction;
use crate::flags::{CommandFlags, CommandLine};
use crate::logging::Format;
use crate::usage_sentence;

fn parse(words: &str) -> Result<CommandFlags, String> {
    let argv = std::iter::once("paceline").chain(words.split_whitespace());
    CommandLine::try_parse_from(argv).map(|line| line.command).map_err(|error| usage_sentence(&error))
}

fn sentence(error: &anyhow::Error) -> String {
    assert!(error.chain().any(|cause| cause.is::<Usage>()), "not a usage error: {error:#}");
    format!("{error:#}")
}

fn serve_over(words: &str, file: &str) -> Result<ServeArgs, String> {
    let config: Config = config::parse(file, Path::new("paceline.toml")).map_err(|error| sentence(&error))?;
    match parse(&format!("serve {words}"))? {
        CommandFlags::Serve(flags) => {
            ServeArgs::from_flags(flags.over(config.serve)).map_err(|e| sentence(&e))
        }
        other => panic!("parsed {other:?}"),
    }
}

fn serve(words: &str) -> Result<ServeArgs, String> {
    serve_over(words, "")
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, String>, part: &str) {
    let sentence = result.expect_err("should be refused");
    assert!(sentence.contains(part), "`{sentence}` does not say `{part}`");
    assert!(!sentence.contains('\n'), "`{sentence}` is more than one line");
}

#[test]
fn command_line_is_consistent() {
    CommandLine::command().debug_assert();
}

#[test]
fn serve_needs_only_a_model() {
    let args = serve("models/Some.Model.gguf").unwrap();
    assert_eq!(args.model_id, "Some.Model");
    assert_eq!(args.listen.to_string(), "127.0.0.1:8080");
    assert_eq!((args.place, args.cut), (Place::Local, Cut::Stages(1)));
    assert_eq!((args.parallel, args.context, args.threads), (4, None, None));
    assert_eq!(args.row_dtype, protocol::RowDtype::F32);
    refused(serve(""), "name a model");
}

#[test]
fn tls_needs_both_files_and_cors_needs_origins() {
    let args =
        serve("m --tls-cert c.pem --tls-key k.pem --cors https://a.example,http://localhost:3000").unwrap();
    assert_eq!(args.tls, Some(("c.pem".into(), "k.pem".into())));
    assert!(matches!(args.cors, server::Cors::Origins(origins) if origins.len() == 2));
    let args = serve("m").unwrap();
    assert_eq!((args.tls, args.cors), (None, server::Cors::Off));
    assert_eq!(serve("m --cors *").unwrap().cors, server::Cors::Any);
    assert_eq!(serve_over("m", "[serve]\ncors = ['*']\n").unwrap().cors, server::Cors::Any);
    refused(serve("m --tls-cert c.pem"), "--tls-key");
    refused(serve("m --tls-key k.pem"), "--tls-cert");
    refused(serve("m --cors a.example"), "no origin");
}

#[test]
fn traces_need_an_address_and_a_share() {
    let args = serve("m --otlp http://c:4318 --otlp-sample 0.1 --otlp-content").unwrap();
    assert_eq!(args.traces.endpoint.as_deref(), Some("http://c:4318"));
    assert!(args.traces.content && args.traces.share.is_some());
    let args = serve_over("m", "[serve]\notlp = 'http://c:4318'\notlp-content = false\n").unwrap();
    assert!(args.traces.endpoint.is_some() && !args.traces.content);
    assert_eq!(serve("m").unwrap().traces, Asked::default());
    refused(serve("m --otlp c:4318"), "write http://host:port");
    refused(serve("m --otlp http://c --otlp-sample most"), "from 0 to 1");
}

#[test]
fn log_lines_are_for_people_or_for_programs() {
    assert_eq!(Format::named(None).unwrap(), Format::Text);
    assert_eq!(Format::named(Some("json")).unwrap(), Format::Json);
    refused(Format::named(Some("xml")).map_err(|error| sentence(&error)), "text or json");
    let config: Config = config::parse("log-format = 'json'\n", Path::new("paceline.toml")).unwrap();
    assert_eq!(config.log_format.as_deref(), Some("json"));
}

#[test]
fn model_by_reference_comes_later() {
    refused(serve("hf:org/model:Q4_K_M"), "later version");
}

#[test]
fn stages_and_cuts_must_agree() {
    assert_eq!(serve("m --stages 3").unwrap().cut, Cut::Stages(3));
    assert_eq!(serve("m --cuts 10,20").unwrap().cut, Cut::Before(vec![10, 20]));
    assert_eq!(serve("m --stages 3 --cuts 10,20").unwrap().cut, Cut::Before(vec![10, 20]));
    refused(serve("m --stages 2 --cuts 10,20"), "--cuts makes 3 stages but --stages says 2");
    refused(serve("m --cuts 20,10"), "ascending");
    refused(serve("m --cuts 0,10"), "after 0");
    refused(serve("m --cuts 10,10"), "ascending");
    refused(serve("m --stages 0"), "1 to 64");
    refused(serve("m --stages 65"), "1 to 64");
}

#[test]
fn heartbeats_are_checked() {
    let ms = std::time::Duration::from_millis;
    let found = |words: &str| serve(words).map(|args| (args.heartbeat.interval, args.heartbeat.dead_after));
    assert_eq!(found("m"), Ok((ms(250), ms(1000))));
    assert_eq!(found("m --heartbeat 100ms --dead-after 2s"), Ok((ms(100), ms(2000))));
    for wrong in
        ["--heartbeat 5ms", "--heartbeat 800ms", "--dead-after 0s", "--heartbeat 60s --dead-after 601s"]
    {
        refused(serve(&format!("m {wrong}")), "twice");
    }
    refused(serve("m --heartbeat often"), "a time such as");
}

#[test]
fn a_line_may_be_silent_for_a_second_at_least() {
    let found = |words: &str| serve(words).map(|args| args.progress_timeout.as_millis());
    assert_eq!((found("m"), found("m --progress-timeout 3s")), (Ok(45_000), Ok(3000)));
    refused(serve("m --progress-timeout 900ms"), "at least 1s");
    refused(serve("m --progress-timeout soon"), "a time such as");
}

#[test]
fn named_machines_follow_the_front() {
    let args = serve("m --stage b:7411 --stage c:7411").unwrap();
    let addresses = vec!["b:7411".to_owned(), "c:7411".to_owned()];
    assert_eq!(args.place, Place::Machines { addresses, front_only: false });
    assert_eq!(args.cut, Cut::Stages(3));
    let args = serve("m --stage b:7411 --stage c:7411 --front-only --cuts 5").unwrap();
    assert_eq!(args.cut, Cut::Before(vec![5]));
    refused(serve("m --stage b:7411 --cuts 1,2"), "needs 1 layers");
    refused(serve("m --stage b"), "no address of a stage");
    refused(serve("m --stage b:0"), "no address of a stage");
    refused(serve("m --stage b:7411 --stages 2"), "cannot be used with");
    refused(serve("m --front-only"), "--stage or --line");
}

#[test]
fn spares_are_machines_or_processes_and_stand_by_for_stages_elsewhere() {
    let args = serve("m --stage b:7411 --stage c:7411 --spare d:7411 --spare e:7411=2").unwrap();
    let machines = vec![("d:7411".to_owned(), None), ("e:7411".to_owned(), Some(2))];
    assert_eq!(args.spares, Spares::Machines(machines));
    assert_eq!((args.cut, args.lease), (Cut::Stages(3), std::time::Duration::from_secs(120)));
    assert_eq!(serve("m --stages 2 --spares 1").unwrap().spares, Spares::Children(1));
    assert_eq!(serve("m").unwrap().spares, Spares::Children(0));
    let file = "[serve]\nstage = ['b:7411']\nspare = ['c:7411=1']\nlease = '5s'\n";
    let args = serve_over("m", file).unwrap();
    assert_eq!(args.spares, Spares::Machines(vec![("c:7411".to_owned(), Some(1))]));
    refused(serve("m --stage b:7411 --spare c:7411=0"), "the stage must be 1 to 1");
    assert!(serve("m --stage b:7411 --spare c:7411=0 --front-only").is_ok());
    refused(serve("m --stage b:7411 --spare c"), "no address of a stage");
    refused(serve("m --stage b:7411 --spare b:7411"), "named twice");
    refused(serve("m --stage b:7411 --spare c:7411 --spare c:7411=1"), "named twice");
    refused(serve("m --stages 2 --spare b:7411"), "use --spares N");
    refused(serve("m --stage b:7411 --spares 1"), "cannot be used with");
    refused(serve("m --spares 1"), "this line has none");
    refused(serve("m --stage b:7411 --spare c:7411 --relay"), "--relay");
}

#[test]
fn line_file_names_machines_and_layers() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("line.toml");
    let serve_line = |text: &str, more: &str| {
        std::fs::write(&file, text).unwrap();
        serve(&format!("m --line {} {more}", file.display()))
    };
    let both =
        "[[stage]]\naddress = 'b:1'\nlayers = [10, 20]\n[[stage]]\naddress = 'c:2'\nlayers = [20, 30]\n";
    let args = serve_line(both, "").unwrap();
    assert_eq!(args.cut, Cut::Before(vec![10, 20]));
    assert!(matches!(args.place, Place::Machines { addresses, .. } if addresses == ["b:1", "c:2"]));
    let spared = format!("{both}[[spare]]\naddress = 'd:3'\n[[spare]]\naddress = 'e:4'\nstage = 2\n");
    let named = |args: ServeArgs| match args.spares {
        Spares::Machines(named) => named,
        Spares::Children(n) => panic!("{n} children"),
    };
    let in_file = [("d:3".to_owned(), None), ("e:4".to_owned(), Some(2))];
    assert_eq!(named(serve_line(&spared, "").unwrap()), in_file);
    assert_eq!(named(serve_line(&spared, "--spare f:5").unwrap()).len(), 3);
    refused(serve_line(&spared, "--spare d:3"), "named twice");
    refused(serve_line(&spared.replace("stage = 2", "stage = 3"), ""), "the stage must be 1 to 2");
    refused(serve_line(both, "--cuts 1,2"), "both say");
    refused(serve_line(both, "--front-only"), "begin at layer 0");
    refused(
        serve_line(&both.replace("[20, 30]", "[21, 30]"), ""),
        "one stage ends at 20, the next begins at 21",
    );
    refused(serve_line(&both.replace("layers = [20, 30]\n", ""), ""), "either every stage");
    refused(serve_line(&both.replace("[20, 30]", "[20, 20]"), ""), "no layer");
    refused(serve_line("[[stage]]\nadress = 'b:1'\n", ""), "line 2: unknown field `adress`");
    refused(serve_line("", ""), "1 to 64 machines");
    let from_zero =
        "[[stage]]\naddress = 'b:1'\nlayers = [0, 20]\n[[stage]]\naddress = 'c:2'\nlayers = [20, 30]\n";
    assert_eq!(serve_line(from_zero, "--front-only").unwrap().cut, Cut::Before(vec![20]));
}

#[test]
fn file_sets_what_flags_leave_open() {
    let file = "[serve]\nmodel = 'm.gguf'\nstages = 3\nparallel = 2\nrelay = true\nlisten = '127.0.0.1:1'\n";
    let args = serve_over("--stages 2 --relay=false", file).unwrap();
    assert_eq!((args.cut, args.parallel, args.relay), (Cut::Stages(2), 2, false));
    assert_eq!((args.model.as_path(), args.listen.port()), (Path::new("m.gguf"), 1));
    assert!(serve_over("", file).unwrap().relay);
    refused(serve_over("m", "[serve]\nstagess = 3\n"), "paceline.toml, line 2: unknown field `stagess`");
    refused(serve_over("m", "[sevre]\n"), "unknown field `sevre`");
    refused(serve_over("m", "[serve]\nparallel = 'many'\n"), "line 2");
    refused(serve_over("m", "[serve]\nparallel = 0\n"), "1 to 256");
    refused(serve_over("m", "[serve]\nstage = ['b:1']\nline = 'x'\n"), "not with both");
    refused(serve_over("m", "[stage]\nchild = true\n"), "unknown field `child`");
}

#[test]
fn numbers_have_ranges() {
    refused(serve("m --parallel 0"), "1 to 256");
    refused(serve("m --threads 0"), "1 to 1024");
    refused(serve("m --ctx 0"), "at least 1");
    refused(serve("m --row-dtype f64"), "f32, bf16, f16 or q8");
    refused(serve("m --listen nonsense"), "host:port");
    refused(serve("m --link speed=3"), "--link speed=3");
    assert_eq!(serve("m --listen 9090").unwrap().listen.to_string(), "127.0.0.1:9090");
    assert_eq!(serve("m --listen :9090").unwrap().listen.to_string(), "127.0.0.1:9090");
    assert!(serve("m --link delay=10ms,jitter=2ms,rate=100mbit,loss=0.1%").unwrap().link.is_some());
}

#[test]
fn reserved_names_say_that_they_come_later() {
    let lines = ["plan m", "pull x", "stage --memory 3"];
    for words in lines {
        refused(parse(words), "later version");
    }
}

#[test]
fn guessing_is_off_unless_asked_for() {
    assert_eq!(serve("m").unwrap().speculate, spec::Speculate::off());
    let pinned = serve("m --speculate predicted,suffix --width 4 --depth 2 --exact").unwrap();
    assert_eq!((pinned.speculate.reach.width, pinned.speculate.reach.depth), (Some(4), Some(2)));
    assert!(pinned.exact);
    refused(serve("m --speculate psychic"), "suffix, predicted, unigram, mtp and draft=PATH");
    let own = serve("m --speculate mtp,suffix --draft-len 3").unwrap().speculate;
    assert!(own.drafts_itself() && own.draft_len == Some(3));
    refused(serve("m --speculate mtp --draft-len 9"), "--draft-len must be 1 to 8");
    refused(serve("m --speculate suffix --draft-len 2"), "add --speculate mtp");
    let drafted = serve("m --speculate auto,draft=/models/small.gguf").unwrap();
    assert_eq!(drafted.speculate.draft_model(), Some("/models/small.gguf"));
    refused(serve("m --speculate suffix,draft"), "write draft=PATH");
    refused(serve("m --width 4"), "add --speculate");
    refused(serve("m --speculate auto --width 17"), "--width must be 1 to 16");
    assert_eq!(serve("m --speculate auto --depth 64").unwrap().speculate.reach.depth, Some(64));
    refused(serve("m --speculate auto --depth 65"), "--depth must be 1 to 64");
    refused(serve("m --exact --gpu-layers 3"), "CPU only");
}

#[test]
fn help_names_the_limits_of_width_and_depth() {
    let all = CommandLine::command();
    for command in ["serve", "bench", "simulate"] {
        let command = all.find_subcommand(command).unwrap();
        for (flag, most) in [("width", spec::MAX_WIDTH), ("depth", spec::MAX_DEPTH)] {
            let found = command.get_arguments().find(|argument| argument.get_id() == flag).unwrap();
            let help = found.get_help().unwrap().to_string();
            assert!(help.contains(&format!("1 to {most} [")), "{}: {help}", command.get_name());
        }
    }
}

#[test]
fn a_benchmark_needs_something_to_measure() {
    let bench = |words: &str| {
        let CommandFlags::Bench(flags) = parse(&format!("bench {words}"))? else { panic!() };
        BenchArgs::from_flags(*flags).map_err(|error| sentence(&error))
    };
    assert!(bench("m --stages 2,4 --link delay=1ms,rate=1gbit --link delay=10ms --width 4 --exact").is_ok());
    assert!(bench("--url http://127.0.0.1:8080/v1 --workload copy,json --concurrency 4").is_ok());
    refused(bench(""), "name a model");
    refused(bench("m --url http://a:1"), "leave one of them out");
    refused(bench("--url a:1"), "--url: `a:1`");
    refused(bench("--url http://a:1 --stages 2"), "--stages is for a MODEL");
    refused(bench("m --api-key-file k"), "with --url");
    refused(bench("m --workload poem"), "`poem` is no workload: choose from copy");
    refused(bench("m --workload copy,copy"), "listed twice");
    refused(bench("m --speculate off,psychic"), "--speculate: \"psychic\" is no source");
    refused(bench("m --speculate off --width 3"), "add --speculate auto");
    refused(bench("m --width 17"), "--width must be 1 to 16");
    refused(bench("m --stages 0"), "--stages must be 1 to 64");
    refused(bench("m --link speed=3"), "--link: speed=3");
    refused(bench("m --requests 0"), "--requests must be 1 to 1000");
    refused(bench("m --max-tokens 5000"), "1 to 4096");
}

#[test]
fn mistakes_get_one_sentence_with_a_way_out() {
    refused(parse("serve m --paralel 3"), "'--parallel'");
    refused(parse("sevre m"), "'serve'");
    refused(parse("inspect"), "--help");
    refused(parse("serve m --parallel many"), "many");
}

#[test]
fn stage_split_and_verify_have_their_defaults() {
    let CommandFlags::Stage(flags) = parse("stage").unwrap() else { panic!() };
    let stage = StageArgs::from_flags(flags).unwrap();
    assert_eq!((stage.listen.to_string().as_str(), stage.child), ("0.0.0.0:7411", false));
    let CommandFlags::Verify(flags) = parse("verify m").unwrap() else { panic!() };
    assert_eq!(VerifyArgs::from_flags(flags).unwrap().cut, Cut::Stages(3));
    let split = |words: &str| {
        let CommandFlags::Split(flags) = parse(words)? else { panic!() };
        SplitArgs::from_flags(flags).map_err(|error| sentence(&error))
    };
    refused(split("split m --out x"), "--stages N or --cuts");
    refused(split("split m --stages 2"), "--out DIR");
    assert_eq!(split("split m --cuts 4 --out x").unwrap().cut, Cut::Before(vec![4]));
}

#[test]
fn enrolment_is_one_step_at_a_time() {
    let enroll = |words: &str| {
        let CommandFlags::Cluster(flags) = parse(&format!("cluster enroll {words}"))? else { panic!() };
        let ClusterAction::Enroll(flags) = flags.action else { panic!() };
        EnrollArgs::from_flags(flags).map_err(|error| sentence(&error))
    };
    assert!(matches!(enroll("--request a.req").unwrap(), EnrollArgs::Request { .. }));
    assert!(matches!(enroll("--join a.member").unwrap(), EnrollArgs::Join { .. }));
    let EnrollArgs::Sign { name, role, days, .. } = enroll("dir/box.req --days 30").unwrap() else {
        panic!()
    };
    assert_eq!((name.as_str(), role, days), ("box", net::Role::Stage, 30));
    refused(enroll("box.req --role king"), "stage, front or observer");
    refused(enroll("box.req --days 0"), "1 to 36500");
    refused(enroll("--request a --join b"), "cannot be used with");
    refused(enroll(""), "REQUEST");
}
