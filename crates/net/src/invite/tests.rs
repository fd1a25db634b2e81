use std::time::SystemTime;

use proptest::prelude::*;
use proptest::sample::Index;
use protocol::NodeId;

use super::*;
use crate::logged::Log;
use crate::{Membership, Succession};

fn offer(valid: Duration) -> Offer {
    Offer {
        role: Role::Stage,
        expires: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000)),
        valid,
    }
}

async fn invite(valid: Duration) -> (Invitation, Ticket, NodeId) {
    let root = ClusterRoot::new().unwrap();
    let id = root.id();
    let invitation = Invitation::open(root, "127.0.0.1:0", offer(valid)).await.unwrap();
    let ticket = invitation.ticket(invitation.local_addr().to_string());
    (invitation, ticket, id)
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_ticket_makes_one_machine_a_member_and_is_worth_nothing_then() {
    let (invitation, ticket, root) = invite(LONG).await;
    let key = NodeKey::generate().unwrap();
    let node = key.id();
    let waiting = tokio::spawn(invitation.wait());
    let text = ticket.to_string();
    let identity = join(&text.parse().unwrap(), key).await.unwrap();
    assert_eq!((identity.node(), identity.membership().role), (node, Role::Stage));
    assert_eq!(tls::public_key(identity.standing().root()), Some(root));
    let joined = waiting.await.unwrap().unwrap();
    assert_eq!(Membership::from_answer(&joined.membership).unwrap().node, node);
    let again = join(&ticket, NodeKey::generate().unwrap()).await;
    assert!(matches!(again, Err(JoinError::Connect { .. })), "{again:?}");
}

#[tokio::test]
async fn of_many_machines_with_one_ticket_one_joins() {
    let (invitation, ticket, _) = invite(LONG).await;
    let waiting = tokio::spawn(invitation.wait());
    let mut joins = JoinSet::new();
    for _ in 0..12 {
        let ticket = ticket.clone();
        joins.spawn(async move { join(&ticket, NodeKey::generate().unwrap()).await });
    }
    let joined = joins.join_all().await.into_iter().filter(Result::is_ok).count();
    assert_eq!(joined, 1);
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_wrong_secret_is_refused_and_too_many_of_them_take_the_invitation_back() {
    let (invitation, ticket, _) = invite(LONG).await;
    let wrong = Ticket { secret: Secret([7; 32]), ..ticket.clone() };
    let waiting = tokio::spawn(invitation.wait());
    for _ in 1..MAX_WRONG {
        let refused = join(&wrong, NodeKey::generate().unwrap()).await;
        assert!(
            matches!(&refused, Err(JoinError::Refused { reason }) if reason.contains("wrong")),
            "{refused:?}"
        );
    }
    join(&wrong, NodeKey::generate().unwrap()).await.unwrap_err();
    assert!(matches!(waiting.await.unwrap(), Err(InviteError::Guessed)));
    join(&ticket, NodeKey::generate().unwrap()).await.unwrap_err();
}

#[tokio::test]
async fn the_secret_is_not_told_to_somebody_else() {
    let (mine, ticket, _) = invite(LONG).await;
    drop(mine);
    let (other, theirs, _) = invite(LONG).await;
    let waiting = tokio::spawn(other.wait());
    // Another cluster waits where the ticket says.
    let misled = Ticket { address: theirs.address.clone(), ..ticket };
    let refused = join(&misled, NodeKey::generate().unwrap()).await;
    assert!(matches!(refused, Err(JoinError::Handshake { .. })), "{refused:?}");
    join(&theirs, NodeKey::generate().unwrap()).await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_invitation_that_nobody_takes_ends() {
    let (invitation, ticket, _) = invite(Duration::from_millis(1)).await;
    assert!(matches!(invitation.wait().await, Err(InviteError::Expired)));
    join(&ticket, NodeKey::generate().unwrap()).await.unwrap_err();
}

#[tokio::test]
async fn a_ticket_that_has_expired_opens_no_later_invitation_and_is_named_once() {
    let (log, _logged) = Log::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("root.pem");
    ClusterRoot::new().unwrap().save(&path).unwrap();
    // Each by a program of its own, as people have it.
    let open = async |valid| {
        let root = ClusterRoot::load(&path).unwrap();
        let invitation = Invitation::open(root, "127.0.0.1:0", offer(valid)).await.unwrap();
        let ticket = invitation.ticket(invitation.local_addr().to_string());
        (invitation, ticket)
    };
    let (first, expired) = open(Duration::from_millis(1)).await;
    assert!(matches!(first.wait().await, Err(InviteError::Expired)));
    let (second, good) = open(LONG).await;
    let waiting = tokio::spawn(second.wait());
    let late = Ticket { address: good.address.clone(), ..expired };
    for _ in 0..3 {
        let refused = join(&late, NodeKey::generate().unwrap()).await;
        assert!(
            matches!(&refused, Err(JoinError::Refused { reason }) if reason.contains("has expired")),
            "{refused:?}"
        );
    }
    join(&good, NodeKey::generate().unwrap()).await.unwrap();
    waiting.await.unwrap().unwrap();
    log.assert_once(&["the ticket is wrong, was used or has expired"]);
}

#[tokio::test]
async fn garbage_and_members_of_the_line_do_not_disturb_an_invitation() {
    let (invitation, ticket, _) = invite(LONG).await;
    let waiting = tokio::spawn(invitation.wait());
    let mut garbage = TcpStream::connect(&ticket.address).await.unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let silent = TcpStream::connect(&ticket.address).await.unwrap();
    // A node of a line asks for links, which an invitation does not speak.
    let (front, _) = Identity::ephemeral_cluster(1).unwrap();
    crate::dial(&ticket.address, &front, None, &crate::DialOptions::default()).await.unwrap_err();
    join(&ticket, NodeKey::generate().unwrap()).await.unwrap();
    waiting.await.unwrap().unwrap();
    drop((garbage, silent));
}

#[tokio::test]
async fn whoever_an_invitation_refuses_again_and_again_is_named_once_for_each_kind_of_reason() {
    let (log, _logged) = Log::start();
    let (invitation, ticket, _) = invite(LONG).await;
    let waiting = tokio::spawn(invitation.wait());
    let wrong = Ticket { secret: Secret([7; 32]), ..ticket.clone() };
    for _ in 0..5 {
        let mut stream = TcpStream::connect(&ticket.address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.ok();
        join(&wrong, NodeKey::generate().unwrap()).await.unwrap_err();
        // Comes and goes, as a scan of ports does.
        drop(TcpStream::connect(&ticket.address).await.unwrap());
    }
    join(&ticket, NodeKey::generate().unwrap()).await.unwrap();
    waiting.await.unwrap().unwrap();
    log.assert_once(&["does not speak this protocol", "the ticket is wrong", "hung up"]);
}

#[tokio::test]
async fn those_who_come_and_say_nothing_keep_nobody_out() {
    let (log, _logged) = Log::start();
    let (invitation, ticket, _) = invite(LONG).await;
    let waiting = tokio::spawn(invitation.wait());
    let mut silent = Vec::new();
    for _ in 0..5 * MAX_PENDING {
        silent.push(TcpStream::connect(&ticket.address).await.unwrap());
    }
    // It would give up before the time of any of them has run out.
    join(&ticket, NodeKey::generate().unwrap()).await.unwrap();
    waiting.await.unwrap().unwrap();
    log.assert_once(&["too many come at once"]);
}

#[test]
fn tickets_are_read_back_and_nothing_else_is() {
    let ticket = Ticket { address: "b.lan:7412".into(), root: NodeId([3; 32]), secret: Secret([0xab; 32]) };
    let text = ticket.to_string();
    let read: Ticket = format!(" {text}\n").parse().unwrap();
    assert_eq!((read.address(), read.root, read.secret.0), ("b.lan:7412", ticket.root, ticket.secret.0));
    assert!(!format!("{ticket:?}").contains("abab"), "the secret does not show");
    for wrong in [&text[1..], &text[..text.len() - 5], &text.replace('@', ""), &text.replace("03", "0x"), ""]
    {
        assert!(wrong.parse::<Ticket>().is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn a_ticket_is_taken_back_by_whoever_has_it_and_by_nobody_else() {
    let (invitation, ticket, _) = invite(LONG).await;
    let waiting = tokio::spawn(invitation.wait());
    let wrong = Ticket { secret: Secret([7; 32]), ..ticket.clone() };
    assert!(matches!(take_back(&wrong).await, Err(JoinError::Refused { .. })));
    take_back(&ticket).await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(InviteError::TakenBack)));
    join(&ticket, NodeKey::generate().unwrap()).await.unwrap_err();
}

/// What fuzzing of invitations begins with.
const REQUEST: &str = include_str!("../../../../fuzz/seeds/invitation/request");
const MEMBERSHIP: &str = include_str!("../../../../fuzz/seeds/invitation/membership");
const SUCCESSION: &[u8] = include_bytes!("../../../../fuzz/seeds/invitation/succession");
const TICKET: &str = include_str!("../../../../fuzz/seeds/invitation/ticket");

/// Some bytes changed, and perhaps cut short.
fn spoiled(good: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<Index>(), any::<u8>()), 0..4);
    (changes, prop::option::of(any::<Index>())).prop_map(|(changes, cut)| {
        let mut bytes = good.to_vec();
        changes.into_iter().for_each(|(at, with)| bytes[at.index(good.len())] = with);
        bytes.truncate(cut.map_or(good.len(), |cut| cut.index(good.len())));
        bytes
    })
}

#[test]
fn what_fuzzing_begins_with_is_good() {
    let answer = ClusterRoot::new().unwrap().enroll(REQUEST, Role::Stage, None).unwrap();
    assert_eq!(
        Membership::from_answer(&answer).unwrap().node,
        Membership::from_answer(MEMBERSHIP).unwrap().node
    );
    assert_eq!(Succession::read(SUCCESSION).unwrap().members().count(), 2);
    TICKET.parse::<Ticket>().unwrap();
}

proptest! {
    #[test]
    fn a_spoiled_ticket_is_another_one_or_none(bytes in spoiled(TICKET.as_bytes())) {
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(ticket) = text.parse::<Ticket>() {
            let again: Ticket = ticket.to_string().parse().unwrap();
            prop_assert!(again.address == ticket.address && again.root == ticket.root);
            prop_assert!(again.secret.is(&ticket.secret.0) && text.contains(&ticket.address));
        }
    }

    #[test]
    fn a_request_that_was_changed_is_signed_for_nobody_else(bytes in spoiled(REQUEST.as_bytes())) {
        let root = ClusterRoot::new().unwrap();
        if let Ok(answer) = root.enroll(&String::from_utf8_lossy(&bytes), Role::Stage, None) {
            let node = Membership::from_answer(MEMBERSHIP).unwrap().node;
            prop_assert_eq!(Membership::from_answer(&answer).unwrap().node, node);
        }
    }

    #[test]
    fn a_membership_that_was_changed_makes_nobody_a_member(bytes in spoiled(MEMBERSHIP.as_bytes())) {
        let text = String::from_utf8_lossy(&bytes);
        let _ = Membership::from_answer(&text);
        prop_assert!(Identity::from_enrolment(NodeKey::generate().unwrap(), &text).is_err(), "another's key");
    }

    #[test]
    fn a_succession_that_was_changed_is_none(bytes in spoiled(SUCCESSION)) {
        prop_assert_eq!(Succession::read(&bytes).is_ok(), bytes == SUCCESSION);
    }

    #[test]
    fn whatever_is_sent_in_an_exchange_is_a_text_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let read = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let read = read.block_on(read_text(&mut &bytes[..]));
        let expected = bytes.split_first_chunk().and_then(|(length, rest)| {
            String::from_utf8(rest.get(..usize::from(u16::from_le_bytes(*length)))?.to_vec()).ok()
        });
        prop_assert_eq!(read.ok(), expected.filter(|text| text.len() <= MAX_TEXT));
    }
}
