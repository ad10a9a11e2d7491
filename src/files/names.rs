//! The names of files: a job's video, and bodies, whose names say whose they are and when they are
//! over.

/// Before the names of all bodies.
pub(super) const ROOT_FOLDER: &str = "bodies";

/// The name of a job's video. An account may be called `.` or `..`, which no folder can be.
#[must_use]
pub(crate) fn video_name(account: &str, job: &str) -> String {
    format!("videos/{}/{job}.mp4", escape_account(account))
}

fn escape_account(account: &str) -> String {
    let escape = if account.starts_with('.') { "=" } else { "" };
    format!("{escape}{account}")
}

/// What a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum BodyKind {
    /// A reply, which may go when there is no room.
    Reply,
    /// What a vendor is to be sent: it stays until its time is over.
    Request,
}

impl BodyKind {
    pub(super) const ALL: [BodyKind; 2] = [BodyKind::Reply, BodyKind::Request];

    pub(super) fn folder(self) -> &'static str {
        match self {
            BodyKind::Reply => "replies",
            BodyKind::Request => "requests",
        }
    }
}

/// The name of a body.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BodyName {
    pub kind: BodyKind,
    /// The name of the account that it belongs to.
    pub account: String,
    /// When it is over, in unix seconds.
    pub expires_s: u64,
    /// The id of its call or job.
    pub id: String,
}

impl BodyName {
    pub(super) fn path(&self) -> String {
        let BodyName { kind, account, expires_s, id } = self;
        format!("{ROOT_FOLDER}/{}/{}/{expires_s}-{id}", kind.folder(), escape_account(account))
    }

    /// Reads a path; `None` if it is none of these.
    pub(super) fn parse(path: &str) -> Option<BodyName> {
        let mut parts = path.strip_prefix(ROOT_FOLDER)?.strip_prefix('/')?.split('/');
        let (kind, account, name) = (parts.next()?, parts.next()?, parts.next()?);
        let kind = BodyKind::ALL.into_iter().find(|known| known.folder() == kind)?;
        let (expires_s, id) = name.split_once('-')?;
        let account = account.strip_prefix('=').unwrap_or(account).to_owned();
        let name =
            BodyName { kind, account, expires_s: expires_s.parse().ok()?, id: id.to_owned() };
        (parts.next().is_none() && name.path() == path).then_some(name)
    }
}
