//! What is around platforms: functions, their images, and a state to begin with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use farfork_platform::scheduler::snapshot::Image;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::functions::{self, Functions};
use super::platform::{Platform, Surroundings, open_directory};
use super::replay::{Replayed, replay};
use super::slow_pool::SlowPool;
use super::systems::{Beginning, System};
use super::trace::Trace;
use crate::error::{BenchError, io};
use crate::progress;
use crate::testbed::Place;

const POOL_BYTES: u64 = 3 << 30;
/// Room for the base image alone.
const SMALL_POOL_BYTES: u64 = 512 << 20;
/// Memory of each node while images are made.
const SET_UP_BYTES: u64 = 4 << 30;
/// As many calls as make an image, at most.
const WARM_CALLS: usize = 32;
/// How long the last image may take.
const IMAGE: Duration = Duration::from_secs(60);

/// Everything around the platforms.
pub struct Bed {
    root: PathBuf,
    functions: Functions,
    slow: Option<SlowPool>,
    runtime: Runtime,
    /// With an image of each function, once they are made.
    pool: Place,
    /// With the base image alone.
    small: Place,
    /// States and sockets of platforms, where functions can read what is theirs.
    place: TempDir,
}

impl Bed {
    /// Makes all of it, but for images; with a slow pool if that is to be modelled.
    pub fn new(root: PathBuf, is_slow: bool) -> Result<Bed, BenchError> {
        let place = open_directory()?;
        let file = place.path().join("slow-pool.json");
        let slow = is_slow.then(|| SlowPool::of(&root, &functions::names(), file)).transpose()?;
        let functions = Functions::load(&root, slow.as_ref())?;
        let (pool, small) = (Place::new(POOL_BYTES)?, Place::new(SMALL_POOL_BYTES)?);
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(io("start threads in", place.path()))?;
        Ok(Bed { root, functions, slow, runtime, pool, small, place })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn start(&self, system: &System, state: &Path, bytes: u64) -> Result<Platform, BenchError> {
        let pool = if system.has_images() { &self.pool } else { &self.small };
        Platform::start(&Surroundings {
            python: &self.root.join(".venv/bin/python"),
            pool: pool.pool.path(),
            state,
            run: &self.path("run"),
            node_bytes: bytes,
            policies: &system.policies,
        })
    }

    /// Deploys all functions, and has images made of them for the systems that begin with some. What
    /// cannot be called ends all here, and not after hours.
    pub fn set_up(&self, systems: &[System]) -> Result<(), BenchError> {
        for beginning in Beginning::ALL {
            let Some(system) = systems.iter().find(|one| one.beginning == beginning) else {
                continue;
            };
            let state = state_of(beginning);
            progress(&format!("setting functions up, {state}"));
            let platform = self.start(system, &self.path(state), SET_UP_BYTES)?;
            self.runtime.block_on(async {
                for (name, function) in self.functions.iter() {
                    platform.client.deploy(name, function.action(beginning)).await?;
                }
                match system.has_images() {
                    true => self.warm(&platform).await,
                    false => self.call_each(&platform).await,
                }
            })?;
        }
        Ok(())
    }

    /// Calls each function until it has an image.
    async fn warm(&self, platform: &Platform) -> Result<(), BenchError> {
        for (name, _) in self.functions.iter() {
            for number in 0..WARM_CALLS {
                self.call_once(platform, name, number).await?;
                let seen = platform.client.snapshot().await?;
                match seen.functions.get(&format!("guest/{name}")).map(|function| function.image) {
                    Some(Image::Ready) => break,
                    Some(Image::Making) => self.await_image(platform, name).await?,
                    _ => {}
                }
            }
            self.await_image(platform, name).await?;
        }
        Ok(())
    }

    async fn await_image(&self, platform: &Platform, name: &str) -> Result<(), BenchError> {
        let begun = Instant::now();
        while begun.elapsed() < IMAGE {
            let seen = platform.client.snapshot().await?;
            if seen.functions.get(&format!("guest/{name}")).is_some_and(|f| f.image == Image::Ready)
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let reason = "there is none".to_owned();
        Err(BenchError::Platform { doing: format!("making an image of {name}"), reason })
    }

    async fn call_each(&self, platform: &Platform) -> Result<(), BenchError> {
        for (name, _) in self.functions.iter() {
            self.call_once(platform, name, 0).await?;
        }
        Ok(())
    }

    async fn call_once(
        &self,
        platform: &Platform,
        name: &str,
        number: usize,
    ) -> Result<(), BenchError> {
        let doing = || format!("calling {name}");
        let Some(example) = self.functions.example(name, number) else { return Ok(()) };
        let answer = platform.client.call(name, &example.args).await;
        let answer = answer.map_err(|reason| BenchError::Platform { doing: doing(), reason })?;
        let result = &answer.document()["response"]["result"];
        match answer.status == 200 && example.is_answered_by(result) {
            true => Ok(()),
            false => Err(BenchError::Platform { doing: doing(), reason: answer.in_words() }),
        }
    }

    /// One trace on a platform of its own, which begins with what was set up.
    pub fn replay(
        &self,
        system: &System,
        bytes: u64,
        trace: &Trace,
    ) -> Result<Replayed, BenchError> {
        let begin = self.path(state_of(system.beginning));
        let state = self.path("state");
        copy(&begin, &state)?;
        if let Some(slow) = &self.slow {
            slow.tell(system)?;
        }
        let platform = self.start(system, &state, bytes)?;
        let replayed = self.runtime.block_on(async {
            self.call_each(&platform).await?;
            replay(&platform.client, trace, &self.functions).await
        });
        drop(platform);
        fs::remove_dir_all(&state).map_err(io("remove", &state))?;
        replayed
    }
}

/// The directory of the state that platforms begin with.
fn state_of(beginning: Beginning) -> &'static str {
    match beginning {
        Beginning::Image => "with-images",
        Beginning::BaseImage => "without",
        Beginning::Program => "in-containers",
    }
}

/// Copies a directory, with what its files are.
fn copy(from: &Path, to: &Path) -> Result<(), BenchError> {
    let copied = Command::new("cp").arg("--archive").arg(from).arg(to).status();
    let copied = copied.map_err(io("copy", from))?;
    let failed = || std::io::Error::other("cp says why");
    if copied.success() { Ok(()) } else { Err(io("copy", from)(failed())) }
}
