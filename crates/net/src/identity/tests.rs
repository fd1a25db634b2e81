use std::time::{Duration, SystemTime};

use protocol::NodeId;

use super::{
    ClusterRoot, Identity, IdentityError, NodeKey, Notice, NoticeError, Role, enroll_request, notice,
};

/// 2001: long past.
fn past() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
}

/// 2100.
fn future() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(4_102_444_800)
}

#[test]
fn enrolment_by_file_gives_a_node_its_membership() {
    let root = ClusterRoot::new().unwrap();
    let key = NodeKey::generate().unwrap();
    let request = enroll_request(&key).unwrap();
    assert!(!request.contains("PRIVATE"));
    let answer = root.enroll(&request, Role::Stage, Some(future())).unwrap();
    assert!(!answer.contains("PRIVATE"));
    let identity = Identity::from_enrolment(key.clone(), &answer).unwrap();
    assert_eq!(identity.node(), key.id());
    assert_eq!(identity.membership().role, Role::Stage);
    assert_eq!(identity.membership().expires, future());
}

#[test]
fn identities_survive_their_text_form() {
    let (front, stages) = Identity::ephemeral_cluster(2).unwrap();
    for identity in stages.iter().chain([&front]) {
        let back = Identity::from_pem(&identity.to_pem()).unwrap();
        assert_eq!(back.membership(), identity.membership());
        assert_eq!(back.to_pem(), identity.to_pem());
    }
    assert_eq!(front.membership().role, Role::Front);
    assert_ne!(stages[0].node(), stages[1].node());
}

#[test]
fn every_membership_has_its_own_serial() {
    let root = ClusterRoot::new().unwrap();
    let key = NodeKey::generate().unwrap();
    let request = enroll_request(&key).unwrap();
    let serial = || {
        let answer = root.enroll(&request, Role::Stage, None).unwrap();
        Identity::from_enrolment(key.clone(), &answer).unwrap().membership().serial
    };
    assert_ne!(serial(), serial());
}

#[test]
fn files_come_back_as_they_were_and_only_the_owner_may_read_them() {
    let dir = tempfile::tempdir().unwrap();
    let root = ClusterRoot::new().unwrap();
    let key = NodeKey::generate().unwrap();
    let identity = root.issue(Role::Front, None).unwrap();
    let path = |name: &str| dir.path().join(name);
    root.save(&path("root")).unwrap();
    key.save(&path("key")).unwrap();
    identity.save(&path("identity")).unwrap();
    for name in ["root", "key", "identity"] {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(path(name)).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(key.save(&path(name)), Err(IdentityError::Exists { path: path(name) }));
    }
    assert_eq!(NodeKey::load(&path("key")).unwrap().id(), key.id());
    assert_eq!(Identity::load(&path("identity")).unwrap().to_pem(), identity.to_pem());
    let again = ClusterRoot::load(&path("root")).unwrap();
    assert_eq!(again.id(), root.id());
    // What the reloaded root signs belongs to the same cluster.
    let answer = again.enroll(&enroll_request(&key).unwrap(), Role::Stage, None).unwrap();
    let member = Identity::from_enrolment(key, &answer).unwrap();
    assert_eq!(member.standing().root(), identity.standing().root());
}

#[test]
fn a_membership_for_another_key_is_refused() {
    let root = ClusterRoot::new().unwrap();
    let [ours, theirs] = [(); 2].map(|()| NodeKey::generate().unwrap());
    let answer = root.enroll(&enroll_request(&theirs).unwrap(), Role::Stage, None).unwrap();
    let refused = Identity::from_enrolment(ours.clone(), &answer).unwrap_err();
    assert_eq!(refused, IdentityError::OtherKey { signed_for: theirs.id(), key: ours.id() });
}

#[test]
fn an_expired_membership_is_refused() {
    let expired = ClusterRoot::new().unwrap().issue(Role::Stage, Some(past())).unwrap();
    let refused = Identity::from_pem(&expired.to_pem()).unwrap_err();
    assert_eq!(refused, IdentityError::Expired { node: expired.node() });
}

#[test]
fn a_membership_beside_a_foreign_root_is_refused() {
    let (front, _) = Identity::ephemeral_cluster(0).unwrap();
    let (other, _) = Identity::ephemeral_cluster(0).unwrap();
    let mixed = front.trusting(&other).to_pem();
    assert_eq!(Identity::from_pem(&mixed).unwrap_err(), IdentityError::NotSignedByRoot);
}

#[test]
fn text_that_is_no_request_key_or_membership_is_refused() {
    let root = ClusterRoot::new().unwrap();
    let key = NodeKey::generate().unwrap();
    let request = enroll_request(&key).unwrap();
    let answer = root.enroll(&request, Role::Stage, None).unwrap();
    // One letter in the middle of the base64 changes a signature or a field.
    let spoilt = request.replacen("MC", "MD", 1).replacen("Aw", "Bw", 1);
    for text in ["", "hello", &answer, &spoilt, &request[..request.len() / 2]] {
        let refused = root.enroll(text, Role::Stage, None).unwrap_err();
        assert!(matches!(refused, IdentityError::Malformed { .. }), "{text}: {refused}");
    }
    for text in ["", "hello", &request, &answer[..answer.len() / 2], &format!("{answer}{answer}")] {
        let refused = Identity::from_enrolment(key.clone(), text).unwrap_err();
        assert!(matches!(refused, IdentityError::Malformed { .. }), "{text}: {refused}");
        assert!(Identity::from_pem(text).is_err());
    }
}

#[test]
fn secrets_do_not_show_in_debug_output() {
    let (front, _) = Identity::ephemeral_cluster(0).unwrap();
    let shown = format!("{front:?}");
    assert!(shown.contains("secret)") && !shown.contains("PRIVATE"));
}

#[test]
fn only_the_roots_latest_notice_is_heeded() {
    let (root, other) = (ClusterRoot::new().unwrap(), ClusterRoot::new().unwrap());
    let member = root.issue(Role::Stage, None).unwrap();
    let let_go = |number, node: u8| root.notice(number, [NodeId([node; 32])].into()).unwrap();
    assert_eq!(member.heed(let_go(2, 1).bytes()), Ok(true));
    // The same again, an older one, and another root's.
    assert_eq!(member.heed(let_go(2, 2).bytes()), Ok(false));
    assert_eq!(member.heed(let_go(1, 2).bytes()), Ok(false));
    let forged = other.notice(3, [].into()).unwrap();
    assert_eq!(member.heed(forged.bytes()), Err(NoticeError::NotSigned));
    assert!(member.has_let_go(NodeId([1; 32])) && !member.has_let_go(NodeId([2; 32])));
    assert_eq!(member.heed(let_go(3, 2).bytes()), Ok(true));
    assert!(!member.has_let_go(NodeId([1; 32])), "a notice replaces the one before");
}

#[test]
fn no_change_of_a_notice_is_believed_and_no_bytes_do_harm() {
    let root = ClusterRoot::new().unwrap();
    let notice = root.notice(7, [NodeId([1; 32]), NodeId([2; 32])].into()).unwrap();
    let whole = notice.bytes().to_vec();
    assert_eq!(Notice::read(notice.bytes(), root.id()).as_ref(), Ok(&notice));
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        Notice::read(&changed, root.id()).unwrap_err();
        Notice::read(&whole[..at], root.id()).unwrap_err();
    }
    Notice::read(&[&whole[..], &[0]].concat(), root.id()).unwrap_err();
    Notice::read(&[], root.id()).unwrap_err();
}

#[test]
fn the_largest_notice_fits_its_limit_and_one_more_is_refused() {
    let root = ClusterRoot::new().unwrap();
    let nodes = |n: usize| {
        let node = |at: usize| NodeId(std::array::from_fn(|byte| (at >> (8 * byte.min(7))) as u8));
        (0..n).map(node).collect()
    };
    let largest = root.notice(1, nodes(notice::MAX_REVOKED)).unwrap();
    assert_eq!(largest.revoked().len(), notice::MAX_REVOKED);
    root.read_notice(largest.bytes()).unwrap();
    root.notice(1, nodes(notice::MAX_REVOKED + 1)).unwrap_err();
}
