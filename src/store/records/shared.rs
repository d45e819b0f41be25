//! `SharedRecords`: records in the shared store, each change one script.

use std::sync::Arc;
use std::time::Duration;

use ::bytes::Bytes;

use super::SessionRecord;
use super::format::{LongTexts, TextDigest};
use super::record_head::RecordHead;
use crate::ownership::Ownership;
use crate::redis_client::{RedisFailure, Value};
use crate::seal::{SealPurpose, Sealer};
use crate::store::events::SessionKey;
use crate::store::scripts::{Script, ScriptCall, ScriptRunner, StoreKeys, bytes, integer, run_one};

static PUT: Script = Script::new("record_put", include_str!("shared/put.lua"));
static RENEW: Script = Script::new("record_renew", include_str!("shared/renew.lua"));
static ADOPT: Script = Script::new("record_adopt", include_str!("shared/adopt.lua"));
static TIME: Script = Script::new("record_time", include_str!("shared/time.lua"));
static CLAIM: Script = Script::new("record_claim", include_str!("shared/claim.lua"));
static GIVE_UP: Script = Script::new("record_give_up", include_str!("shared/give_up.lua"));
static FINISH: Script = Script::new("record_finish", include_str!("shared/finish.lua"));
static REMOVE: Script = Script::new("record_remove", include_str!("shared/remove.lua"));
static READ: Script = Script::new("record_read", include_str!("shared/read.lua"));
static TEXT: Script = Script::new("record_text", include_str!("shared/text.lua"));

/// How long the epoch of a record that was removed is kept: far longer than a command is under way.
const REMOVED_FOR: Duration = Duration::from_mins(1);
/// For an adoption whose decision holds for good.
const NEVER_LATE: Duration = Duration::from_millis(u64::MAX);

/// Records in the shared store.
#[derive(Debug)]
pub struct SharedRecords {
    pub(super) store: Arc<dyn ScriptRunner>,
    keys: StoreKeys,
    sealer: Arc<Sealer>,
    /// Life of a record after its last renewal.
    pub(super) life: Duration,
}

/// A session that has ended here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EndedSession {
    pub(super) session: SessionKey,
    pub(super) by: Ownership,
    pub(super) leaves_record: bool,
    /// Its tag, if a record of it may be on its way to the store.
    pub(super) tag: Option<u64>,
}

/// What the shared store knows of a session.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordState {
    /// No record: expired, or lost by the store.
    Absent,
    /// The session is over.
    Over,
    /// A replica owns it, or its last owner has given it up.
    Owned {
        /// The owner; see [`Ownership::is_given_up`].
        by: Ownership,
        /// The highest stream with an event that was shown to a client.
        highest_stream: u32,
        /// The record; `None` if it is not written yet, or in a format or by a key that this release does not
        /// know.
        record: Option<Box<SessionRecord>>,
    },
}

/// Outcome of an adoption.
#[derive(Debug, Clone, PartialEq)]
pub enum Adoption {
    /// The caller owns the session now.
    Adopted {
        /// Its ownership.
        by: Ownership,
        /// The highest stream with an event that was shown to a client.
        highest_stream: u32,
        /// The record, as in [`RecordState::Owned`].
        record: Option<Box<SessionRecord>>,
    },
    /// Something else is the case.
    Refused(RecordState),
}

impl SharedRecords {
    /// Records that live for `life` after their last renewal.
    #[must_use]
    pub fn new(
        store: Arc<dyn ScriptRunner>,
        keys: StoreKeys,
        sealer: Arc<Sealer>,
        life: Duration,
    ) -> Self {
        Self {
            store,
            keys,
            sealer,
            life,
        }
    }

    /// What the store knows of a session.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn read(&self, session: SessionKey) -> Result<RecordState, RedisFailure> {
        let value = self.get(self.keys.record(session)).await?;
        self.opened(session, value.as_deref()).await
    }

    /// The time of the store, for [`adopt`](Self::adopt) of the same session: servers of a Cluster have clocks of their own.
    ///
    /// # Errors
    /// The store cannot be reached.
    pub async fn time(&self, session: SessionKey) -> Result<Duration, RedisFailure> {
        let reply = run_one(&*self.store, self.call(&TIME, session, Vec::new())).await?;
        let millis = integer(&reply).and_then(|millis| u64::try_from(millis).ok());
        Ok(Duration::from_millis(millis.unwrap_or_default()))
    }

    /// Adopts a session that `seen` owns, as the replica `node`, in the next epoch, unless the store carries that out
    /// later than at its time `until`.
    ///
    /// # Errors
    /// The store cannot be reached. The session may have been adopted: [`read`](Self::read) says so.
    ///
    /// # Cancel safety
    /// As after an error.
    pub async fn adopt(
        &self,
        session: SessionKey,
        seen: Ownership,
        (node, until): (u32, Duration),
    ) -> Result<Adoption, RedisFailure> {
        let Some(epoch) = seen.epoch.checked_add(1) else {
            return Ok(Adoption::Refused(self.read(session).await?));
        };
        let by = Ownership { node, epoch };
        let args = vec![
            seen.to_bytes().to_vec(),
            by.to_bytes().to_vec(),
            self.life(),
            until.as_millis().to_string().into(),
        ];
        let reply = run_one(&*self.store, self.call(&ADOPT, session, args)).await?;
        let state = self.opened(session, bytes(&reply)).await?;
        Ok(match state {
            RecordState::Owned {
                by: owner,
                highest_stream,
                record,
            } if owner == by => Adoption::Adopted {
                by,
                highest_stream,
                record,
            },
            state => Adoption::Refused(state),
        })
    }

    /// Adopts a session that its last owner has given up, as `seen`: no deadline applies.
    ///
    /// # Errors
    /// As for [`adopt`](Self::adopt).
    ///
    /// # Cancel safety
    /// As after an error.
    pub async fn adopt_given_up(
        &self,
        session: SessionKey,
        seen: Ownership,
        node: u32,
    ) -> Result<Adoption, RedisFailure> {
        self.adopt(session, seen, (node, NEVER_LATE)).await
    }

    /// Gives a session up that `by` owns, with its record as of now: any replica may then adopt the session. `false` if
    /// another replica owns the session or it is over.
    ///
    /// # Errors
    /// The store cannot be written to. Where that [is uncertain](RedisFailure::is_uncertain), the session may have been
    /// given up: to be repeated until there is an answer, and until then the session counts as another's.
    ///
    /// # Cancel safety
    /// As after an error.
    pub async fn give_up(
        &self,
        session: SessionKey,
        by: Ownership,
        highest_stream: u32,
        record: &SessionRecord,
    ) -> Result<bool, RedisFailure> {
        let Some(given_up) = by.given_up() else {
            return Ok(false);
        };
        let (texts, sealed, _) = self.sealed(session, record);
        let args = vec![
            by.to_bytes().to_vec(),
            given_up.to_bytes().to_vec(),
            highest_stream.to_string().into(),
            self.life(),
            sealed,
        ];
        // Without one of its texts the record could not be read.
        for text in self.store.run(texts).await {
            text?;
        }
        let reply = run_one(&*self.store, self.call(&GIVE_UP, session, args)).await?;
        Ok(integer(&reply) == Some(1))
    }

    /// Whether the store is connected.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.store.is_reachable()
    }

    /// Claims a session that has no id, for `own`; the owner, which may be another replica.
    ///
    /// # Errors
    /// The store cannot be reached. The session may have been claimed: to be repeated.
    ///
    /// # Cancel safety
    /// As after an error.
    pub async fn claim(
        &self,
        session: SessionKey,
        own: Ownership,
    ) -> Result<Ownership, RedisFailure> {
        let args = vec![own.to_bytes().to_vec(), self.life()];
        let reply = run_one(&*self.store, self.call(&CLAIM, session, args)).await?;
        let owner = bytes(&reply).and_then(Ownership::split_from);
        Ok(owner.map_or(own, |(owner, _)| owner))
    }

    /// The calls that write a record, that of the record last; the digests of its long texts.
    pub(super) fn put(
        &self,
        session: SessionKey,
        by: Ownership,
        highest_stream: u32,
        record: &SessionRecord,
    ) -> (Vec<ScriptCall>, Vec<TextDigest>) {
        let (mut calls, sealed, texts) = self.sealed(session, record);
        let args = vec![
            by.to_bytes().to_vec(),
            highest_stream.to_string().into(),
            self.life(),
            sealed,
            record.tag.to_be_bytes().to_vec(),
        ];
        calls.push(self.call(&PUT, session, args));
        (calls, texts)
    }

    /// The calls that keep the long texts of a record, its sealed body, and the digests of the texts.
    fn sealed(
        &self,
        session: SessionKey,
        record: &SessionRecord,
    ) -> (Vec<ScriptCall>, Vec<u8>, Vec<TextDigest>) {
        let (plain, long) = record.encode();
        let sealed = self
            .sealer
            .seal_bytes(SealPurpose::SessionRecord, &session, &plain);
        let text = |(digest, text): (&TextDigest, &Bytes)| {
            let (purpose, aad) = (SealPurpose::SessionRecord, &digest[..]);
            self.text(digest, Some(self.sealer.seal_bytes(purpose, aad, text)))
        };
        let calls = long.iter().map(text).collect();
        (calls, sealed, long.into_keys().collect())
    }

    /// The calls that lengthen the life of a record and of its long texts, that of the record last.
    pub(super) fn renew(
        &self,
        session: SessionKey,
        by: Ownership,
        texts: &[TextDigest],
    ) -> Vec<ScriptCall> {
        let mut calls: Vec<ScriptCall> = { texts.iter() }
            .map(|digest| self.text(digest, None))
            .collect();
        let args = vec![by.to_bytes().to_vec(), self.life()];
        calls.push(self.call(&RENEW, session, args));
        calls
    }

    /// The call that says that a session is over, or removes the record of one that a client cannot name.
    pub(super) fn finish(&self, ended: &EndedSession) -> ScriptCall {
        let (session, by) = (ended.session, ended.by.to_bytes().to_vec());
        if ended.leaves_record {
            return self.call(&FINISH, session, vec![by, self.life()]);
        }
        let life = REMOVED_FOR.as_millis().to_string().into();
        let tag = ended.tag.map(u64::to_be_bytes);
        let tag = tag.map_or_else(Vec::new, |tag| tag.to_vec());
        self.call(&REMOVE, session, vec![by, life, tag])
    }

    fn call(&self, script: &'static Script, session: SessionKey, args: Vec<Vec<u8>>) -> ScriptCall {
        ScriptCall {
            script,
            keys: vec![self.keys.record(session)],
            args,
        }
    }

    /// Keeps a text, or lengthens its life: twice that of the records that name the text.
    fn text(&self, digest: &TextDigest, sealed: Option<Vec<u8>>) -> ScriptCall {
        let life = (2 * self.life).as_millis().to_string().into();
        ScriptCall {
            script: &TEXT,
            keys: vec![self.keys.text(digest)],
            args: std::iter::once(life).chain(sealed).collect(),
        }
    }

    fn life(&self) -> Vec<u8> {
        self.life.as_millis().to_string().into()
    }

    async fn get(&self, key: String) -> Result<Option<Vec<u8>>, RedisFailure> {
        let call = ScriptCall {
            script: &READ,
            keys: vec![key],
            args: Vec::new(),
        };
        match run_one(&*self.store, call).await? {
            Value::BulkString(value) => Ok(Some(value)),
            _ => Ok(None),
        }
    }

    /// What a stored value says.
    async fn opened(
        &self,
        session: SessionKey,
        value: Option<&[u8]>,
    ) -> Result<RecordState, RedisFailure> {
        let Some(head) = value.and_then(RecordHead::read) else {
            return Ok(RecordState::Absent);
        };
        if head.is_over {
            return Ok(RecordState::Over);
        }
        let purpose = SealPurpose::SessionRecord;
        let plain = self.sealer.open_bytes(purpose, &session, head.body);
        let record = match plain {
            Some(plain) => self.record(&plain.into()).await?,
            None => None,
        };
        Ok(RecordState::Owned {
            by: head.by,
            highest_stream: head.highest_stream,
            record: record.map(Box::new),
        })
    }

    /// The record behind opened bytes, with its long texts.
    async fn record(&self, plain: &Bytes) -> Result<Option<SessionRecord>, RedisFailure> {
        let Some(digests) = SessionRecord::digests_of(plain) else {
            return Ok(None);
        };
        let mut long = LongTexts::new();
        for digest in digests {
            let sealed = self.get(self.keys.text(&digest)).await?;
            let purpose = SealPurpose::SessionRecord;
            let text = sealed.and_then(|sealed| self.sealer.open_bytes(purpose, &digest, &sealed));
            long.extend(text.map(|text| (digest, text.into())));
        }
        Ok(SessionRecord::decode(plain, &long))
    }
}
