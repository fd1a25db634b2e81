//! All that an endpoint needs to prove what it is and to judge others.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use protocol::NodeId;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject};

use tokio::sync::watch;

use super::{ClusterRoot, IdentityError, Membership, NodeKey, NoticeError, Role, Standing, files};
use crate::{link::WeakLink, tls};

/// A key, and how it stands: its membership, and what others are judged by. Cheap to clone; all clones hear at once what
/// the cluster's root says.
#[derive(Clone, Debug)]
pub struct Identity(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    key: NodeKey,
    standing: watch::Sender<Arc<Standing>>,
    /// Links that were made with this identity, to be closed when the peer is a member no more.
    links: Mutex<Vec<Watched>>,
}

/// A link, and what its peer has proven itself by.
#[derive(Debug)]
struct Watched {
    link: WeakLink,
    chain: Vec<CertificateDer<'static>>,
}

impl Watched {
    fn end_unless(&self, standing: &Standing) {
        if !standing.keeps(self.link.node(), &self.chain, UnixTime::now()) {
            self.link.end();
        }
    }
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
        let checked = tls::verify(&cert, &root, &[], UnixTime::now());
        let identity = Self::assemble(key, cert, root)?;
        checked.map_err(|error| match tls::is_expired(&error) {
            true => IdentityError::Expired { node: identity.node() },
            false => IdentityError::NotSignedByRoot,
        })?;
        Ok(identity)
    }

    /// PEM text: key, membership, root certificate. It holds the secret: keep it in a file of mode 0600 or hand it to
    /// a child through a pipe.
    #[must_use]
    pub fn to_pem(&self) -> String {
        let standing = self.standing();
        let (cert, root) = (files::cert_pem(standing.cert()), files::cert_pem(standing.root()));
        format!("{}{cert}{root}", self.0.key.to_pem())
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

    /// Puts [`Self::to_pem`] in the place of the file that it was read from, wholly or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn replace(&self, path: &Path) -> Result<(), IdentityError> {
        files::replace_secret(path, &self.to_pem())
    }

    /// The node's public key.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.0.key.id()
    }

    /// What the root says of the node.
    #[must_use]
    pub fn membership(&self) -> Membership {
        self.standing().membership().clone()
    }

    /// How it stands now.
    #[must_use]
    pub fn standing(&self) -> Arc<Standing> {
        Arc::clone(&self.0.standing.borrow())
    }

    /// How it stands, and word of every change.
    #[must_use]
    pub fn standings(&self) -> watch::Receiver<Arc<Standing>> {
        self.0.standing.subscribe()
    }

    /// Takes in what the cluster's root says, whoever brought it: members that it has let go are refused from now on, and
    /// their links end; a new root takes the old one's place. Whether it was news.
    ///
    /// # Errors
    /// If the root did not say it, or has left this member out.
    pub fn heed(&self, document: &[u8]) -> Result<bool, NoticeError> {
        let mut heeded = Ok(None);
        self.0.standing.send_if_modified(|standing| {
            heeded = standing.heed(document).map(|changed| {
                changed.map(|changed| {
                    *standing = Arc::new(changed);
                    Arc::clone(standing)
                })
            });
            matches!(heeded, Ok(Some(_)))
        });
        let Some(standing) = heeded? else { return Ok(false) };
        self.links().iter().for_each(|watched| watched.end_unless(&standing));
        Ok(true)
    }

    /// Whether the root has let this member go.
    #[must_use]
    pub fn has_let_go(&self, node: NodeId) -> bool {
        self.0.standing.borrow().has_let_go(node)
    }

    /// Remembers a link, to end it should its peer, which has proven itself by `chain`, be a member no more: also if that
    /// happened while it was being made.
    pub(crate) fn watch(&self, link: WeakLink, chain: Vec<CertificateDer<'static>>) {
        let mut links = self.links();
        links.retain(|watched| watched.link.is_alive());
        let watched = Watched { link, chain };
        watched.end_unless(&self.standing());
        links.push(watched);
    }

    fn links(&self) -> std::sync::MutexGuard<'_, Vec<Watched>> {
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn assemble(
        key: NodeKey,
        cert: CertificateDer<'static>,
        root: CertificateDer<'static>,
    ) -> Result<Self, IdentityError> {
        let standing = Standing::new(cert, root)?;
        let signed_for = standing.membership().node;
        if signed_for != key.id() {
            return Err(IdentityError::OtherKey { signed_for, key: key.id() });
        }
        let standing = watch::Sender::new(Arc::new(standing));
        Ok(Self(Arc::new(Parts { key, standing, links: Mutex::default() })))
    }

    /// An impostor for tests: proves itself by one cluster's membership and trusts another's root.
    #[cfg(test)]
    pub(crate) fn trusting(&self, other: &Self) -> Self {
        let (ours, theirs) = (self.standing(), other.standing());
        let key = self.0.key.clone();
        Self::assemble(key, ours.cert().clone(), theirs.root().clone()).expect("both are well-formed")
    }

    pub(crate) fn secret(&self) -> PrivateKeyDer<'static> {
        self.0.key.secret()
    }
}
