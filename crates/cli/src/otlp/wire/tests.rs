//! A trace of one span of each kind, in both forms. That collectors read them is tested end to end.

use std::time::SystemTime;

use protocol::LayerRange;
use server::Sampler;

use super::*;

fn settings() -> Settings {
    Settings {
        target: "http://c:4318/v1/traces".parse().unwrap(),
        encoding: Encoding::Json,
        headers: Vec::new(),
        roots: None,
        timeout: Duration::from_secs(1),
        service: "llm".into(),
        attributes: vec![("service.instance.id".into(), "front-7".into())],
        sampler: Sampler::default(),
        content: false,
    }
}

fn trace() -> Trace {
    let span = |id, parent, name: &str, place, attributes| server::Span {
        id,
        parent,
        name: name.into(),
        place,
        start: Duration::from_millis(id),
        end: Duration::from_millis(10 * id),
        attributes,
        failed: id == 1,
    };
    let stage = |address: Option<&str>, is_local| StageSeen {
        address: address.map(str::to_owned),
        layers: LayerRange { start: 0, end: 4 },
        is_local,
        rtt: None,
    };
    let words = Value::Words(vec!["stop".into()]);
    Trace {
        id: 0x0102,
        parent: Some(0xabc),
        state: Some("a=1".into()),
        started: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        stages: vec![stage(None, true), stage(Some("b:7411"), false)],
        spans: vec![
            span(1, None, "POST /x", Place::Front, vec![("words", words), ("yes", Value::Flag(true))]),
            span(2, Some(1), "stage 1", Place::Stage(1), vec![("rows", 3_u32.into()), ("text", "t".into())]),
        ],
    }
}

#[test]
fn json_is_as_the_protocol_has_it() {
    let json = Encoding::Json.encode(&Export::of(&settings(), vec![trace()]));
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    insta::assert_snapshot!(serde_json::to_string_pretty(&json).unwrap());
}

#[test]
fn protobuf_says_the_same() {
    let export = Export::of(&settings(), vec![trace()]);
    let bytes = Encoding::Protobuf.encode(&export);
    assert_eq!(Export::decode(&bytes[..]).unwrap(), export);
}

#[test]
fn a_stage_is_a_service_of_its_own() {
    let resource = |place| {
        let said = resource_of(&settings(), place, &trace().stages);
        let text = |pair: KeyValue| match pair.value.unwrap().said.unwrap() {
            Said::Text(text) => Some((pair.key, text)),
            _ => None,
        };
        said.into_iter().filter_map(text).collect::<BTreeMap<_, _>>()
    };
    let front = resource(Place::Front);
    assert_eq!((front["service.name"].as_str(), front["service.instance.id"].as_str()), ("llm", "front-7"));
    let (first, second) = (resource(Place::Stage(0)), resource(Place::Stage(1)));
    assert_eq!(second["service.name"], "llm-stage");
    assert_eq!(second["service.instance.id"], "stage-1", "what is known of a stage wins");
    assert_eq!(
        (first["paceline.stage.address"].as_str(), second["paceline.stage.address"].as_str()),
        ("local", "b:7411")
    );
}
