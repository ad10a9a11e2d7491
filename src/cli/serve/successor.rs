//! The process that this one starts in its own place, at SIGUSR2: the same program by the same
//! path, with the same arguments and `--upgrade`. It is in the control group of this process, as a
//! service manager wants it.

use std::ffi::OsString;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::time::sleep;

/// The variable of the environment with the process that has started this one in its own place.
const PREDECESSOR_VARIABLE: &str = "TOLLGATE_PREDECESSOR";
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A process that was started to take over.
pub(super) struct Successor {
    child: Child,
    pid: Pid,
}

/// How a process has ended.
pub(super) struct EndOfProcess {
    /// Whether it was neither told to stop nor ended by itself in order.
    pub(super) is_failure: bool,
    pub(super) told: String,
}

impl Successor {
    /// Starts it.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(super) fn start() -> anyhow::Result<Successor> {
        let mut arguments = std::env::args_os();
        let program = arguments.next().context("the path of this program is not known")?;
        let mut arguments: Vec<OsString> = arguments.collect();
        if !arguments.iter().any(|argument| argument == "--upgrade") {
            arguments.push("--upgrade".into());
        }
        let child = Command::new(&program)
            .args(arguments)
            .env(PREDECESSOR_VARIABLE, std::process::id().to_string())
            // It names this process, and the watchdog will be that of the new one.
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pid = Pid::from_child(&child);
        Ok(Successor { child, pid })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended. It is left to whoever adopts it when this process ends, so that a
    /// service manager learns how it ended.
    pub(super) async fn ended(&self) -> EndOfProcess {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::Pid(self.pid), options) {
                Ok(None) => sleep(POLL_INTERVAL).await,
                Ok(Some(status)) => {
                    let told = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => format!("exit status {code}"),
                        (None, Some(signal)) => format!("signal {signal}"),
                        (None, None) => "unknown status".to_owned(),
                    };
                    return EndOfProcess { is_failure: status.exit_status() != Some(0), told };
                }
                Err(why) => return EndOfProcess { is_failure: true, told: why.to_string() },
            }
        }
    }

    /// Ends it, since it has not taken over: nobody would know of it, and it could take the sockets
    /// of a later attempt.
    pub(super) fn abandon(mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        std::thread::spawn(move || self.child.wait());
    }
}

/// Whether this process was started by the one that it is to replace, which knows that and waits.
pub(super) fn is_started_by_predecessor() -> bool {
    let named = std::env::var(PREDECESSOR_VARIABLE).ok().and_then(|pid| pid.parse().ok());
    named.is_some_and(|pid: u32| pid == std::os::unix::process::parent_id())
}
