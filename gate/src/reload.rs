//! Files that change.
//!
//! The kernel reports changes in the folder of limits and in the folders on the way to it, and thereby the swap of a
//! symbolic link, of `RUNTIME_ROOT` or of a Kubernetes config map. Then the files are read, and used if they differ from
//! the previous ones. They are read every few seconds too: not every file system reports changes.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::check::Rules;
use crate::counters::add;
use crate::limits::{read_file, read_folder, File, Limits, Options};
use crate::services::tls::Tls;
use crate::services::Gate;

/// The silence after a change before files are read: a writer is seldom done after the first write.
const QUIET_FOR: Duration = Duration::from_millis(100);

/// The longest wait for that silence.
const QUIET_WITHIN: Duration = Duration::from_secs(1);

/// The interval of reading without a reported change.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The folder of the files of limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    /// All files in it and below are read.
    pub path: PathBuf,
    /// The number of its last components that may be swapped; the one above these stays.
    pub depth: usize,
    /// Ignore names that begin with a dot.
    pub ignore_dot_files: bool,
    pub options: Options,
    /// limitador's file of limits, which is elsewhere.
    pub limitador_file: Option<PathBuf>,
}

impl Folder {
    /// Reads all files; nothing if the folder does not exist.
    ///
    /// # Errors
    ///
    /// One line: which file cannot be read.
    pub fn read(&self) -> Result<Option<Vec<File>>, String> {
        let files = match read_folder(&self.path, self.ignore_dot_files) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            read => Some(read.map_err(|error| error.to_string())?),
        };
        let Some(path) = &self.limitador_file else { return Ok(files) };
        let (mut files, file) =
            (files.unwrap_or_default(), read_file(path).map_err(|error| error.to_string())?);
        if file.text.trim().is_empty() {
            return Err(format!("{}: the file is empty; without limits it is []", file.name));
        }
        files.push(file);
        Ok(Some(files))
    }
}

/// Keeps the limits and certificates in use as the files have them.
pub struct Reloader {
    /// Without it, limits come from elsewhere.
    folder: Option<Folder>,
    /// The file of rules for `/check`.
    check_file: Option<PathBuf>,
    gate: Arc<Gate>,
    tls: Option<Arc<Tls>>,
    /// The last text, used or not: a mistake counts once.
    read: Result<Option<Vec<File>>, String>,
    /// Reads the rules again.
    rules_read: Option<Result<File, String>>,
    /// The last mistake of the certificates.
    complaint: Option<String>,
}

impl Reloader {
    /// Creates a reloader of this folder, this file of rules and these certificates.
    pub fn new(
        folder: Option<Folder>,
        check_file: Option<PathBuf>,
        gate: Arc<Gate>,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        Self { folder, check_file, gate, tls, read: Ok(None), rules_read: None, complaint: None }
    }

    /// Reads the rules for `/check`, if there is a file of them. Uses them if they differ from those before, or if `anyway`.
    ///
    /// # Errors
    ///
    /// The mistake. The rules in use stay.
    pub async fn load_rules(&mut self, anyway: bool) -> Result<(), String> {
        let Some(path) = &self.check_file else { return Ok(()) };
        let read = read_file(path).map_err(|error| error.to_string());
        if !anyway && self.rules_read.as_ref() == Some(&read) {
            return Ok(());
        }
        self.rules_read = Some(read.clone());
        let counters = &self.gate.counters;
        let rules = apart(move || Rules::read(&read?).map_err(|mistake| mistake.to_string())).await;
        let rules = rules.inspect_err(|_| add(&counters.config_load_error, 1))?;
        self.gate.rules.store(Some(Arc::new(rules)));
        add(&counters.config_load_success, 1);
        Ok(())
    }

    /// Reads the files. Uses them if they differ from those before, or if `anyway`. Returns whether it does.
    ///
    /// # Errors
    ///
    /// The mistake. The limits in use stay.
    pub async fn load(&mut self, anyway: bool) -> Result<bool, String> {
        let Some(folder) = &self.folder else { return Ok(false) };
        let read = folder.read();
        if !anyway && read == self.read {
            return Ok(false);
        }
        self.read.clone_from(&read);
        let counters = &self.gate.counters;
        let limits = match read {
            // Before the first file exists, nothing is known to be allowed.
            Ok(None) if !self.has_limits() => return Ok(false),
            Ok(Some(files)) if files.is_empty() && !self.has_limits() => return Ok(false),
            // A folder is away for a moment when links are replaced one after the other; or for ever by mistake.
            Ok(None) => Err(format!("{}: no such folder", folder.path.display())),
            Ok(Some(files)) => {
                let options = folder.options.clone();
                apart(move || Limits::read(&files, &options).map_err(|mistake| mistake.to_string())).await
            }
            Err(error) => Err(error),
        };
        let limits = limits.inspect_err(|_| add(&counters.config_load_error, 1))?;
        self.gate.use_limits(limits).await;
        Ok(true)
    }

    fn has_limits(&self) -> bool {
        self.gate.limits.load().is_some()
    }

    /// Loads whatever changes, and everything on SIGHUP. Never ends.
    pub async fn run(mut self, mut hangups: Signal) {
        let (changed, mut changes) = mpsc::channel(1);
        let mut anyway = false;
        loop {
            // Folders appear and disappear: watches the present ones, then reads, so that no change is missed.
            let watcher = watch(self.folder.as_ref(), &self.folders(), changed.clone());
            if let Err(error) = &watcher {
                log::debug!("cannot watch files, reads them every {LOOK_EVERY:?}: {error}");
            }
            self.load_again(anyway).await;
            anyway = tokio::select! {
                _ = hangups.recv() => true,
                _ = changes.recv() => {
                    settle(&mut changes).await;
                    false
                }
                () = sleep(LOOK_EVERY) => false,
            };
        }
    }

    async fn load_again(&mut self, anyway: bool) {
        match self.load(anyway).await {
            Ok(true) => log::info!("loaded files of limits"),
            Ok(false) => {}
            Err(mistake) => log::error!("{mistake}; the limits in use stay"),
        }
        if let Err(mistake) = self.load_rules(anyway).await {
            log::error!("{mistake}; the rules in use stay");
        }
        match self.tls.as_ref().map(|tls| tls.reload()) {
            Some(Ok(true)) => log::info!("loaded certificates"),
            Some(Err(mistake)) if self.complaint.as_ref() != Some(&mistake) => {
                log::error!("{mistake}; the certificates in use stay");
                self.complaint = Some(mistake);
            }
            _ => {}
        }
    }

    /// Folders in which a change can change what is read, beside the folder of limits.
    fn folders(&self) -> BTreeSet<PathBuf> {
        let way = self.folder.iter().flat_map(|folder| {
            folder.path.ancestors().take(folder.depth.saturating_add(1)).map(Path::to_owned)
        });
        let limits = self.read.iter().flatten().flatten().map(|file| PathBuf::from(&file.name));
        let limitador_file = self.folder.iter().filter_map(|folder| folder.limitador_file.clone());
        let others = self.check_file.iter().cloned().chain(limitador_file);
        let certificates = self.tls.iter().flat_map(|tls| tls.files().cloned());
        let paths: Vec<PathBuf> = way.chain(limits).chain(others).chain(certificates).collect();
        // Files may be links to elsewhere.
        let targets: Vec<PathBuf> = paths.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let folders = paths.iter().chain(&targets).filter_map(|path| path.parent());
        let folders =
            folders.map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
        let is_watched = |folder: &Path| self.folder.iter().any(|limits| folder.starts_with(&limits.path));
        folders.filter(|folder| !is_watched(folder)).map(Path::to_owned).collect()
    }
}

/// Reads on a thread of its own: calls must not wait while large files are read.
async fn apart<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    spawn_blocking(read).await.unwrap_or_else(|error| Err(error.to_string()))
}

/// Waits until nothing has changed for a while.
async fn settle(changes: &mut mpsc::Receiver<()>) {
    let quiet = async { while timeout(QUIET_FOR, changes.recv()).await.is_ok() {} };
    let _ = timeout(QUIET_WITHIN, quiet).await;
}

/// Sends a message when the kernel reports a change, until it is dropped.
fn watch(
    limits: Option<&Folder>,
    others: &BTreeSet<PathBuf>,
    changed: mpsc::Sender<()>,
) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reading is no change.
        let is_read =
            |kind| matches!(kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write));
        if event.is_ok_and(|event| !is_read(event.kind)) {
            // One pending message is enough.
            let _ = changed.try_send(());
        }
    })?;
    // The parent reports a missing folder when it is created.
    let _ = limits.map(|folder| watcher.watch(&folder.path, RecursiveMode::Recursive));
    for folder in others {
        let _ = watcher.watch(folder, RecursiveMode::NonRecursive);
    }
    Ok(watcher)
}
