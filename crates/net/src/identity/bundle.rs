//! All that an endpoint needs to prove what it is and to judge others.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use protocol::NodeId;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject};

use tokio::sync::watch;

use super::{ClusterRoot, IdentityError, Membership, NodeKey, Notice, NoticeError, Role, files};
use crate::{link::WeakLink, tls};

/// A key, its membership, and what others are judged by: the root certificate, and the root's latest notice of those that
/// it has let go. Cheap to clone; all clones hear of a notice at once.
#[derive(Clone, Debug)]
pub struct Identity(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    key: NodeKey,
    membership: Membership,
    cert: CertificateDer<'static>,
    root: CertificateDer<'static>,
    notice: watch::Sender<Option<Notice>>,
    /// Links that were made with this identity, to be closed when the peer is let go.
    links: Mutex<Vec<WeakLink>>,
}

impl Identity {
    /// A front and `n_stages` stages of a new cluster whose root key is forgotten at once: nobody can ever join it.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn ephemeral_cluster(n_stages: usize) -> Result<(Self, Vec<Self>), IdentityError> {
        let root = ClusterRoot::new()?;
        let stages = (0..n_stages).map(|_| root.issue(Role::Stage, None)).collect::<Result<_, _>>()?;
        Ok((root.issue(Role::Front, None)?, stages))
    }

    /// From a node's key and the answer of [`ClusterRoot::enroll`] to its request.
    ///
    /// # Errors
    /// If the answer is for another key, has expired, or is not signed by the root in it.
    pub fn from_enrolment(key: NodeKey, answer: &str) -> Result<Self, IdentityError> {
        const WHAT: &str = "a membership with its cluster root in PEM form";
        let certs: Vec<_> = CertificateDer::pem_slice_iter(answer.as_bytes())
            .take(3)
            .collect::<Result<_, _>>()
            .map_err(|e| IdentityError::malformed(WHAT, format!("{e:?}")))?;
        let [cert, root] = <[_; 2]>::try_from(certs).map_err(|certs| {
            IdentityError::malformed(WHAT, format!("it holds {} certificates", certs.len()))
        })?;
        let identity = Self::assemble(key, cert, root)?;
        tls::check_membership(&identity.0.cert, &identity.0.root, UnixTime::now()).map_err(|error| {
            match tls::is_expired(&error) {
                true => IdentityError::Expired { node: identity.node() },
                false => IdentityError::NotSignedByRoot,
            }
        })?;
        Ok(identity)
    }

    /// PEM text: key, membership, root certificate. It holds the secret: keep it in a file of mode 0600 or hand it to
    /// a child through a pipe.
    #[must_use]
    pub fn to_pem(&self) -> String {
        let parts = &self.0;
        format!("{}{}{}", parts.key.to_pem(), files::cert_pem(&parts.cert), files::cert_pem(&parts.root))
    }

    /// Reads [`Self::to_pem`].
    ///
    /// # Errors
    /// As [`Self::from_enrolment`], or if there is no key in the text.
    pub fn from_pem(pem: &str) -> Result<Self, IdentityError> {
        Self::from_enrolment(NodeKey::from_pem(pem)?, pem)
    }

    /// Reads a file written by [`Self::save`].
    ///
    /// # Errors
    /// As [`Self::from_pem`], or if the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        Self::from_pem(&files::read_secret(path)?)
    }

    /// Writes [`Self::to_pem`] to a new file, mode 0600.
    ///
    /// # Errors
    /// If the file exists already or cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        files::write_secret(path, &self.to_pem())
    }

    /// The node's public key.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.0.key.id()
    }

    /// What the root says of the node.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.0.membership
    }

    /// Takes in what the cluster's root says, whoever brought it: members that it has let go are refused from now on, and
    /// their links end. Whether it was news.
    ///
    /// # Errors
    /// If the root did not say it.
    pub fn heed(&self, notice: &[u8]) -> Result<bool, NoticeError> {
        let root = tls::public_key(&self.0.root).ok_or(NoticeError::NotSigned)?;
        let notice = Notice::read(notice, root)?;
        let is_news = self.0.notice.send_if_modified(|latest| {
            let is_news = latest.as_ref().is_none_or(|latest| latest.number() < notice.number());
            if is_news {
                *latest = Some(notice);
            }
            is_news
        });
        if is_news {
            self.links().iter().filter(|link| self.has_let_go(link.node())).for_each(WeakLink::end);
        }
        Ok(is_news)
    }

    /// The root's latest notice, and word of every later one.
    #[must_use]
    pub fn notices(&self) -> watch::Receiver<Option<Notice>> {
        self.0.notice.subscribe()
    }

    /// Whether the root has let this member go.
    #[must_use]
    pub fn has_let_go(&self, node: NodeId) -> bool {
        self.0.notice.borrow().as_ref().is_some_and(|notice| notice.revoked().contains(&node))
    }

    /// Remembers a link, to end it should its peer be let go: also if that happened while it was being made.
    pub(crate) fn watch(&self, link: WeakLink) {
        let mut links = self.links();
        links.retain(WeakLink::is_alive);
        if self.has_let_go(link.node()) {
            link.end();
        }
        links.push(link);
    }

    fn links(&self) -> std::sync::MutexGuard<'_, Vec<WeakLink>> {
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn assemble(
        key: NodeKey,
        cert: CertificateDer<'static>,
        root: CertificateDer<'static>,
    ) -> Result<Self, IdentityError> {
        let membership = Membership::parse(&cert)?;
        if membership.node != key.id() {
            return Err(IdentityError::OtherKey { signed_for: membership.node, key: key.id() });
        }
        let (notice, links) = (watch::Sender::new(None), Mutex::default());
        Ok(Self(Arc::new(Parts { key, membership, cert, root, notice, links })))
    }

    /// An impostor for tests: proves itself by one cluster's membership and trusts another's root.
    #[cfg(test)]
    pub(crate) fn trusting(&self, other: &Self) -> Self {
        let parts = &self.0;
        Self(Arc::new(Parts {
            key: parts.key.clone(),
            membership: parts.membership.clone(),
            cert: parts.cert.clone(),
            root: other.0.root.clone(),
            notice: watch::Sender::new(None),
            links: Mutex::default(),
        }))
    }

    pub(crate) fn secret(&self) -> PrivateKeyDer<'static> {
        self.0.key.secret()
    }

    pub(crate) fn cert(&self) -> CertificateDer<'static> {
        self.0.cert.clone()
    }

    pub(crate) fn root(&self) -> &CertificateDer<'static> {
        &self.0.root
    }
}
