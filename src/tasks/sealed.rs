//! The handle of a task for modern clients: the upstream, its own id of the task, and the session that the task
//! lives in. Spec: SPEC K-18, A-30; BRIDGING §4.1.

use crate::ownership::Ownership;
use crate::seal::{SealPurpose, Sealer};
use crate::store::events::SessionKey;

/// The byte after the upstream's name, which cannot contain it.
const END: u8 = 0;
/// The task lives at its upstream alone: any replica can ask for it.
const ANYWHERE: u8 = 0;
/// The task lives in an upstream session of an `ImplicitSession`.
const AT_HOME: u8 = 1;

/// The contents of the handle of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SealedTask {
    /// The upstream that runs it.
    pub(super) upstream: Box<str>,
    /// The upstream's id of the task.
    pub(super) id: String,
    /// Key and owner of the `ImplicitSession` in whose upstream session the task lives; `None` if in no session.
    pub(super) home: Option<(Ownership, SessionKey)>,
}

impl SealedTask {
    /// The handle, sealed for the client that `context` names.
    pub(super) fn seal(&self, sealer: &Sealer, context: &[u8]) -> String {
        let mut plain = self.upstream.as_bytes().to_vec();
        plain.push(END);
        match &self.home {
            None => plain.push(ANYWHERE),
            Some((owner, session)) => {
                plain.push(AT_HOME);
                plain.extend_from_slice(&owner.to_bytes());
                plain.extend_from_slice(session);
            }
        }
        plain.extend_from_slice(self.id.as_bytes());
        sealer.seal(SealPurpose::Task, context, &plain)
    }

    /// Opens a handle; `None` if the handle is forged or was sealed for another `context`.
    pub(super) fn open(sealer: &Sealer, context: &[u8], handle: &str) -> Option<Self> {
        let plain = sealer.open(SealPurpose::Task, context, handle)?;
        let end = plain.iter().position(|byte| *byte == END)?;
        let (upstream, rest) = plain.split_at_checked(end)?;
        let (home, id) = match rest.get(1..)?.split_first()? {
            (&ANYWHERE, id) => (None, id),
            (&AT_HOME, rest) => {
                let (owner, rest) = Ownership::split_from(rest)?;
                let (session, id) = rest.split_first_chunk()?;
                (Some((owner, *session)), id)
            }
            _ => return None,
        };
        Some(Self {
            upstream: std::str::from_utf8(upstream).ok()?.into(),
            id: std::str::from_utf8(id).ok()?.to_owned(),
            home,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Ownership = Ownership { node: 7, epoch: 2 };

    fn tasks() -> [SealedTask; 3] {
        let task = |id: &str, home| SealedTask {
            upstream: "files".into(),
            id: id.to_owned(),
            home,
        };
        [
            task("t-1", None),
            task("\0ä\"", Some((OWNER, [0; 16]))),
            task("", Some((OWNER, [9; 16]))),
        ]
    }

    #[test]
    fn handle_says_owner_session_and_task_to_its_client_only() {
        let sealer = Sealer::new(&[]).unwrap();
        for task in tasks() {
            let handle = task.seal(&sealer, b"alice");
            assert_eq!(SealedTask::open(&sealer, b"alice", &handle), Some(task));
            assert_eq!(SealedTask::open(&sealer, b"mallory", &handle), None);
        }
    }

    #[test]
    fn handle_of_an_unknown_version_is_refused() {
        let sealer = Sealer::new(&[]).unwrap();
        for task in tasks() {
            let handle = task.seal(&sealer, b"alice");
            let next = sealer.of_next_version(SealPurpose::Task, b"alice", &handle);
            assert_eq!(SealedTask::open(&sealer, b"alice", &next), None);
        }
    }

    // A handle is a header too (`Mcp-Name`): about 200 characters at most.
    #[test]
    fn handle_is_short() {
        let sealer = Sealer::new(&[]).unwrap();
        let task = SealedTask {
            upstream: "a-name-of-20-letters".into(),
            id: "0123456789abcdef0123456789abcdef0123".to_owned(),
            home: Some((OWNER, [9; 16])),
        };
        let handle = task.seal(&sealer, &[0; 64]);
        assert!(handle.len() <= 160, "{}", handle.len());
    }
}
