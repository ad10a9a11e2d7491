//! The names of files: the videos of jobs, and bodies, whose names contain their account and the
//! time when they expire.

/// The folder of all bodies.
pub(super) const ROOT_FOLDER: &str = "bodies";

/// Returns the name of a job's video. An account may be called `.` or `..`, which no folder can be,
/// so a leading dot is escaped.
#[must_use]
pub(crate) fn video_name(account: &str, job: &str) -> String {
    format!("videos/{}/{job}.mp4", escape_account(account))
}

/// Returns the folders in which the files and bodies of an account are.
pub(super) fn account_folders(account: &str) -> [String; 3] {
    let account = escape_account(account);
    let [replies, requests] = BodyKind::ALL.map(BodyKind::folder);
    [
        format!("videos/{account}"),
        format!("{ROOT_FOLDER}/{replies}/{account}"),
        format!("{ROOT_FOLDER}/{requests}/{account}"),
    ]
}

fn escape_account(account: &str) -> String {
    let escape = if account.starts_with('.') { "=" } else { "" };
    format!("{escape}{account}")
}

/// The kind of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum BodyKind {
    /// A reply, which may be deleted when space is needed.
    Reply,
    /// A request body for a vendor, which stays until it expires or the vendor has it.
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
    /// The name of the body's account.
    pub account: String,
    /// When the body expires, in unix seconds.
    pub expires_s: u64,
    /// The id of the call or the job.
    pub id: String,
}

impl BodyName {
    pub(super) fn path(&self) -> String {
        let BodyName { kind, account, expires_s, id } = self;
        format!("{ROOT_FOLDER}/{}/{}/{expires_s}-{id}", kind.folder(), escape_account(account))
    }

    /// Parses a path; `None` if it is not the path of a body.
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
