//! What machines show each other before and while one becomes a member: tickets, requests, memberships, successions.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use net::{ClusterRoot, Identity, Membership, NodeKey, Role, Succession, Ticket};

fuzz_target!(|data: &[u8]| {
    static ROOT: OnceLock<ClusterRoot> = OnceLock::new();
    let root = ROOT.get_or_init(|| ClusterRoot::new().expect("the system has randomness"));
    if let Ok(succession) = Succession::read(data) {
        assert_eq!(succession.bytes(), data);
        for member in succession.members() {
            let answer = succession.answer(member.node).expect("it is a member");
            assert_eq!(Membership::from_answer(&answer).expect("it was read before").node, member.node);
        }
    }
    assert!(root.read_notice(data).is_err(), "nobody has signed it");
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(ticket) = text.parse::<Ticket>() {
        let again: Ticket = ticket.to_string().parse().expect("what was written can be read");
        assert_eq!(again.to_string(), ticket.to_string());
    }
    if let Ok(answer) = root.enroll(text, Role::Stage, None) {
        assert!(root.has_signed(&answer) && Membership::from_answer(&answer).is_ok());
    }
    let _ = Membership::from_answer(text);
    let _ = NodeKey::generate().map(|key| Identity::from_enrolment(key, text));
});
