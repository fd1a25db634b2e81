use std::time::{Duration, SystemTime};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{ClusterRoot, Identity, NodeKey, Role, enroll_request};

const BEFORE: u64 = 4_000_000_000;
const UNTIL: u64 = BEFORE + 1;

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// What one makes of the other at a time.
fn judge(one: &Identity, other: &Identity, seconds: u64) -> Result<(), Error> {
    let chain = other.standing().chain();
    one.standing().check(&chain[0], &chain[1..], at(seconds))
}

fn is_replaced(judged: &Result<(), Error>) -> bool {
    matches!(judged, Err(Error::InvalidCertificate(CertificateError::Revoked)))
}

/// A cluster whose root is rotated.
struct World {
    old: ClusterRoot,
    new: ClusterRoot,
    succession: Succession,
    /// Members whom the new root takes over.
    members: Vec<Identity>,
    /// One that it does not.
    left_out: Identity,
    /// One that it has enrolled itself.
    newcomer: Identity,
}

impl World {
    fn new(n_members: usize) -> Self {
        let [old, new] = [(); 2].map(|()| ClusterRoot::new().unwrap());
        let role = |at| if at == 0 { Role::Front } else { Role::Stage };
        let members: Vec<_> = (0..n_members).map(|at| old.issue(role(at), None).unwrap()).collect();
        let until = SystemTime::UNIX_EPOCH + Duration::from_secs(UNTIL);
        let listed: Vec<_> = members.iter().map(Identity::membership).collect();
        let succession = old.hand_over(&new, until, &listed).unwrap();
        let left_out = old.issue(Role::Stage, None).unwrap();
        let newcomer = new.issue(Role::Stage, None).unwrap();
        Self { old, new, succession, members, left_out, newcomer }
    }
}

#[test]
fn a_member_that_hears_of_the_new_root_goes_by_it_and_keeps_its_key_and_role() {
    let world = World::new(2);
    let member = &world.members[1];
    let before = member.membership();
    assert_eq!(member.heed(world.succession.bytes()), Ok(true));
    let after = member.membership();
    assert_eq!((after.node, after.role), (before.node, before.role));
    assert_ne!(after.serial, before.serial);
    // It survives its text form, and then hears whom its root follows.
    let again = Identity::from_pem(&member.to_pem()).unwrap();
    assert_eq!(again.membership(), after);
    assert!(judge(&again, &world.members[0], BEFORE).is_err());
    assert_eq!(again.heed(world.succession.bytes()), Ok(true));
    assert_eq!(judge(&again, &world.members[0], BEFORE), Ok(()));
    assert!(again.to_pem().ends_with(&world.succession.answer(after.node).unwrap()));
}

#[test]
fn whoever_is_left_out_hears_so_and_stays_as_it_was() {
    let world = World::new(1);
    assert_eq!(world.left_out.heed(world.succession.bytes()), Err(NoticeError::LeftOut));
    assert_eq!(judge(&world.left_out, &world.members[0], BEFORE), Ok(()));
}

#[test]
fn who_has_stolen_the_old_root_adds_nobody_and_nothing_where_the_new_one_is_known() {
    let world = World::new(2);
    let [front, stage] = &world.members[..] else { panic!("two") };
    stage.heed(world.succession.bytes()).unwrap();
    let enrolled = world.old.issue(Role::Front, None).unwrap();
    assert!(is_replaced(&judge(stage, &enrolled, BEFORE)));
    // Another role for a key that is a member's, another heir, and another member let go.
    let key = NodeKey::from_pem(&front.to_pem()).unwrap();
    let answer = world.old.enroll(&enroll_request(&key).unwrap(), Role::Observer, None).unwrap();
    assert!(is_replaced(&judge(stage, &Identity::from_enrolment(key, &answer).unwrap(), BEFORE)));
    let listed = [front.membership(), stage.membership()];
    let later = SystemTime::UNIX_EPOCH + Duration::from_secs(UNTIL + 1000);
    let heir = ClusterRoot::new().unwrap();
    let stolen = world.old.hand_over(&heir, later, &listed).unwrap();
    assert_eq!(stage.heed(stolen.bytes()), Err(NoticeError::NotSigned));
    let notice = world.old.notice(u64::MAX, [front.node()].into()).unwrap();
    assert_eq!(stage.heed(notice.bytes()), Ok(false));
    assert!(!stage.has_let_go(front.node()));
    assert_eq!(stage.standing().succession().map(Succession::until), Some(world.succession.until()));
}

#[test]
fn a_second_rotation_follows_the_first() {
    let world = World::new(2);
    let third = ClusterRoot::new().unwrap();
    let until = SystemTime::UNIX_EPOCH + Duration::from_secs(UNTIL);
    let listed: Vec<_> = world.members.iter().map(Identity::membership).collect();
    let next = world.new.hand_over(&third, until, &listed).unwrap();
    for member in &world.members {
        member.heed(world.succession.bytes()).unwrap();
        member.heed(next.bytes()).unwrap();
        // Who is behind tells what it knows.
        assert_eq!(member.heed(world.succession.bytes()), Ok(false));
    }
    assert_eq!(judge(&world.members[0], &world.members[1], UNTIL), Ok(()));
    // Two rotations behind is too far.
    assert!(judge(&world.members[0], &world.left_out, BEFORE).is_err());
}

#[test]
fn no_change_of_a_succession_is_believed_and_no_bytes_do_harm() {
    let world = World::new(2);
    let whole = world.succession.bytes().to_vec();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        world.members[0].heed(&changed).unwrap_err();
        world.members[0].heed(&whole[..at]).unwrap_err();
    }
    world.members[0].heed(&[&whole[..], &[0]].concat()).unwrap_err();
    assert_eq!(world.members[0].heed(&whole), Ok(true));
}

#[test]
fn a_cluster_of_some_hundred_members_is_rotated_and_one_that_is_too_large_is_refused() {
    let [old, new] = [(); 2].map(|()| ClusterRoot::new().unwrap());
    let member = old.issue(Role::Stage, None).unwrap().membership();
    let members = |n: usize| {
        let node = |n: usize| NodeId(std::array::from_fn(|byte| (n >> (8 * byte.min(7))) as u8));
        (0..n).map(|n| Membership { node: node(n), ..member.clone() }).collect::<Vec<_>>()
    };
    let now = SystemTime::UNIX_EPOCH;
    assert_eq!(old.hand_over(&new, now, &members(500)).unwrap().members().count(), 500);
    let refused = old.hand_over(&new, now, &members(1000)).unwrap_err();
    assert!(refused.to_string().contains("too many"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whoever has heard what, members get on with each other until the time is over, and with nobody else.
    #[test]
    fn members_get_on_with_each_other_until_the_time_is_over(heard in vec(any::<bool>(), 4), seconds in BEFORE..UNTIL + 2) {
        let world = World::new(heard.len());
        for (member, _) in world.members.iter().zip(&heard).filter(|(_, heard)| **heard) {
            member.heed(world.succession.bytes()).unwrap();
        }
        let is_over = seconds >= UNTIL;
        for (one, knows) in world.members.iter().zip(&heard) {
            for (other, known) in world.members.iter().zip(&heard) {
                let judged = judge(one, other, seconds);
                if is_over && *knows && !known {
                    prop_assert!(is_replaced(&judged), "{:?}", judged);
                } else {
                    prop_assert_eq!(judged, Ok(()));
                }
            }
            prop_assert_eq!(is_replaced(&judge(one, &world.left_out, seconds)), *knows);
            prop_assert_eq!(judge(one, &world.newcomer, seconds).is_ok(), *knows);
        }
    }

    /// What is passed on in the order in which it is known is understood, however often and by whoever.
    #[test]
    fn all_go_by_the_same_in_the_end(tells in vec((0..4_usize, 0..4_usize), 0..24)) {
        let world = World::new(4);
        let notice = |root: &ClusterRoot, number| root.notice(number, [NodeId([9; 32])].into()).unwrap();
        // All have heard the old root; the first has heard everything.
        for member in &world.members {
            member.heed(notice(&world.old, 1).bytes()).unwrap();
        }
        world.members[0].heed(world.succession.bytes()).unwrap();
        world.members[0].heed(notice(&world.new, 2).bytes()).unwrap();
        let tell = |from: usize, to: usize| {
            for document in world.members[from].standing().documents() {
                world.members[to].heed(document).unwrap();
            }
        };
        for (from, to) in tells {
            tell(from, to);
        }
        for to in 1..4 {
            tell(0, to);
            let (first, other) = (world.members[0].standing(), world.members[to].standing());
            prop_assert!(first.documents().eq(other.documents()));
        }
    }
}
