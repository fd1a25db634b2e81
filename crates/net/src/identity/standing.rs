//! What a member goes by: how it proves itself, and by what it judges others. Pure: the time is an argument.
//!
//! It changes by what the cluster's roots say and by nothing else: a notice replaces the one before, and a new root takes
//! the place of the old one, which is then believed in nothing any more. Whoever heard the same in another order, or
//! twice, goes by the same.

use std::sync::Arc;

use bytes::Bytes;
use protocol::NodeId;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, Error};

use super::root::RootCert;
use super::{IdentityError, Membership, Notice, NoticeError, Succession};
use crate::tls;

/// See the module.
#[derive(Clone, Debug)]
pub struct Standing {
    membership: Membership,
    cert: CertificateDer<'static>,
    root: RootCert,
    /// What led to this root, if it took another one's place.
    succession: Option<Arc<Succession>>,
    notice: Option<Notice>,
}

impl Standing {
    /// Of a member that has heard nothing yet.
    pub(super) fn new(
        cert: CertificateDer<'static>,
        root: CertificateDer<'static>,
    ) -> Result<Self, IdentityError> {
        let membership = Membership::parse(&cert)?;
        let root = RootCert::read(root)
            .ok_or_else(|| IdentityError::malformed("a cluster root", "it holds no Ed25519 key"))?;
        Ok(Self { membership, cert, root, succession: None, notice: None })
    }

    /// What the root says of this member.
    #[must_use]
    pub const fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The root's latest notice.
    #[must_use]
    pub const fn notice(&self) -> Option<&Notice> {
        self.notice.as_ref()
    }

    /// How this root came into its place, if another one was there before.
    #[must_use]
    pub fn succession(&self) -> Option<&Succession> {
        self.succession.as_deref()
    }

    /// All that others may have to hear, in the order in which they understand it.
    pub fn documents(&self) -> impl Iterator<Item = &Bytes> {
        let succession = self.succession.iter().map(|succession| succession.bytes());
        succession.chain(self.notice.iter().map(Notice::bytes))
    }

    /// Whether the root has let this member go.
    #[must_use]
    pub fn has_let_go(&self, node: NodeId) -> bool {
        self.notice.as_ref().is_some_and(|notice| notice.revoked().contains(&node))
    }

    /// What this becomes by hearing a document; none if it is no news.
    ///
    /// # Errors
    /// If neither this cluster's root nor the one before has said it, or if it leaves this member out.
    pub(super) fn heed(&self, document: &[u8]) -> Result<Option<Self>, NoticeError> {
        if Succession::is_one(document) { self.follow(document) } else { self.hear(document) }
    }

    fn hear(&self, document: &[u8]) -> Result<Option<Self>, NoticeError> {
        let notice = match Notice::read(document, self.root.key) {
            Err(NoticeError::NotSigned) if self.is_outdated(document) => return Ok(None),
            read => read?,
        };
        let is_news = self.notice.as_ref().is_none_or(|latest| latest.number() < notice.number());
        Ok(is_news.then(|| Self { notice: Some(notice), ..self.clone() }))
    }

    /// Whether the root before has said it: to be expected of those who have not heard of this one.
    fn is_outdated(&self, notice: &[u8]) -> bool {
        self.succession.as_ref().is_some_and(|succession| Notice::read(notice, succession.old()).is_ok())
    }

    fn follow(&self, document: &[u8]) -> Result<Option<Self>, NoticeError> {
        if self.succession.as_ref().is_some_and(|known| known.bytes() == document) {
            return Ok(None);
        }
        let succession = Succession::read(document)?;
        if succession.new_root() == self.root.key {
            // A member that this root has signed itself hears whom it follows.
            let is_news = self.succession.is_none();
            return Ok(is_news.then(|| Self { succession: Some(Arc::new(succession)), ..self.clone() }));
        }
        if self.succession.as_ref().is_some_and(|known| known.old() == succession.new_root()) {
            return Ok(None); // Of the time before.
        }
        if succession.old() != self.root.key {
            return Err(NoticeError::NotSigned);
        }
        let (membership, cert) = succession.member(self.membership.node).ok_or(NoticeError::LeftOut)?;
        Ok(Some(Self {
            membership: membership.clone(),
            cert: cert.clone(),
            root: succession.root().clone(),
            notice: self.notice.clone(),
            succession: Some(Arc::new(succession)),
        }))
    }

    /// Whether what a peer shows makes it a member at `now`.
    ///
    /// # Errors
    /// [`CertificateError::Revoked`] for a membership of the root before whose time is over, or that the new root has not
    /// taken over; and whatever else is wrong with it.
    pub(crate) fn check(
        &self,
        cert: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let Err(refused) = tls::verify(cert, &self.root.cert, intermediates, now) else { return Ok(()) };
        let Some(succession) = &self.succession else { return Err(refused) };
        match tls::verify(cert, &succession.old_root().cert, &[], now) {
            Ok(())
                if now < UnixTime::since_unix_epoch(since_epoch(succession))
                    && takes_over(succession, cert) =>
            {
                Ok(())
            }
            Ok(()) => Err(Error::InvalidCertificate(CertificateError::Revoked)),
            Err(error) if tls::is_expired(&error) => Err(error),
            Err(_) => Err(refused),
        }
    }

    /// Whether a link with a peer that has proven itself by `chain` goes on. It need not prove itself again only because it
    /// has not got its new membership yet.
    pub(super) fn keeps(&self, node: NodeId, chain: &[CertificateDer<'_>], now: UnixTime) -> bool {
        let (Some(succession), [cert, intermediates @ ..]) = (&self.succession, chain) else {
            return !self.has_let_go(node);
        };
        let is_member =
            takes_over(succession, cert) || tls::verify(cert, &self.root.cert, intermediates, now).is_ok();
        is_member && !self.has_let_go(node)
    }

    /// What this member proves itself with. Behind its membership stands what makes it good for those who know only the
    /// root before.
    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        let bridge = self.succession.iter().map(|succession| succession.bridge().clone());
        [self.cert.clone()].into_iter().chain(bridge).collect()
    }

    pub(crate) const fn cert(&self) -> &CertificateDer<'static> {
        &self.cert
    }

    pub(crate) const fn root(&self) -> &CertificateDer<'static> {
        &self.root.cert
    }
}

fn since_epoch(succession: &Succession) -> std::time::Duration {
    succession.until().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Whether the new root has signed the same for this node: who stole the old key cannot add to it.
fn takes_over(succession: &Succession, cert: &CertificateDer<'_>) -> bool {
    let shown = Membership::parse(cert).ok();
    let signed = |shown: &Membership| succession.member(shown.node).map(|(membership, _)| membership.role);
    shown.is_some_and(|shown| signed(&shown) == Some(shown.role))
}

#[cfg(test)]
mod tests;
