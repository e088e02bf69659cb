//! What is learnt survives a restart, and a disk that is slow, gone, damaged or someone else's costs no answer.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foretoken::service::{
    Flush, FollowParams, LogLimits, Offered, Service, ServiceHandle, ServiceParams, ServiceRole, WriteParams,
};
use foretoken::types::State;

use crate::shell::{DEADLINE, median_ttft_ms, poll, samples};

fn params(dir: &Path) -> ServiceParams {
    ServiceParams { state_dir: Some(dir.to_path_buf()), ..ServiceParams::default() }
}

fn start(dir: &Path) -> (Service, ServiceHandle) {
    Service::start(params(dir)).expect("a good directory")
}

fn offer(service: &Service, range: std::ops::Range<u32>) {
    let count = range.len();
    assert_eq!(service.offer(samples(range)), Ok(Offered { accepted: count, dropped: 0 }));
}

fn generation(service: &Service) -> u64 {
    service.snapshot().version.generation.0
}

fn refusal(params: ServiceParams) -> String {
    Service::start(params).err().expect("a refusal").to_string()
}

fn snapshot_files(dir: &Path) -> Vec<PathBuf> {
    let number = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?.strip_suffix(".snapshot")?.to_string();
        let (generation, revision) = name.split_once('-')?;
        Some((generation.parse::<u64>().ok()?, revision.parse::<u64>().ok()?))
    };
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| number(path).is_some());
    files.sort_by_key(number);
    files
}

/// Lives in which everything offered was learnt, fitted and put away.
async fn live(dir: &Path, range: std::ops::Range<u32>) -> u64 {
    let (service, handle) = start(dir);
    let before = service.status().ingest.accepted;
    let count = range.len() as u64;
    offer(&service, range);
    poll("a fit", || service.status().learner.unwrap().last_fit.is_some()).await;
    handle.shutdown(DEADLINE).await.unwrap();
    assert_eq!(service.status().ingest.accepted, before + count);
    generation(&service)
}

#[tokio::test]
async fn a_restart_keeps_count_generation_model_and_samples() {
    let temp = tempfile::tempdir().unwrap();
    let (service, handle) = start(temp.path());
    let lineage = service.snapshot().version.lineage;
    offer(&service, 0..300);
    poll("a fitted generation", || generation(&service) >= 1).await;
    handle.shutdown(DEADLINE).await.unwrap();
    let (answer, last) = (median_ttft_ms(&service), service.snapshot());

    let (service, handle) = start(temp.path());
    let first = service.snapshot();
    assert_eq!(first.version.lineage, lineage);
    assert!(first.version.generation >= last.version.generation);
    let status = service.status();
    assert_eq!(status.ingest.accepted, 300);
    assert!(status.ready, "{}", status.ready_reason);
    if first.version.generation == last.version.generation {
        assert_eq!(median_ttft_ms(&service), answer, "the same model answers at once");
        assert!(first.version.revision > last.version.revision, "no number is given twice");
    }
    poll("the samples are back", || service.status().persistence.samples_restored == 300).await;
    poll("they are fitted", || generation(&service) > last.version.generation.0).await;
    let survey = service.survey().await.unwrap();
    assert_eq!(survey.targets[0].stored, 300);
    offer(&service, 300..305);
    poll("new samples are learnt", || service.survey_len() == 305).await;
    assert_eq!(service.status().ingest.accepted, 305);
    handle.shutdown(DEADLINE).await.unwrap();
}

/// Rows of the TTFT store, by the account.
trait SurveyLen {
    fn survey_len(&self) -> usize;
}

impl SurveyLen for Service {
    fn survey_len(&self) -> usize {
        self.status().learner.map_or(0, |learner| learner.targets[0].stored)
    }
}

#[tokio::test]
async fn i1_a_damaged_newest_snapshot_is_skipped_by_name_and_its_number_is_not_given_again() {
    let temp = tempfile::tempdir().unwrap();
    live(temp.path(), 0..100).await;
    let newest_generation = live(temp.path(), 100..400).await;
    let files = snapshot_files(temp.path());
    assert!(files.len() >= 2, "{files:?}");
    let newest = files.last().unwrap();
    let mut bytes = fs::read(newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(newest, bytes).unwrap();

    let (service, handle) = start(temp.path());
    let status = service.status();
    assert!(status.ready);
    let name = newest.file_name().unwrap().to_str().unwrap();
    let notices = status.persistence.notices.join("\n");
    assert!(notices.contains(&format!("skipped {name}: ")), "{notices}");
    assert!(notices.contains(&format!("serves as generation {}", newest_generation + 1)), "{notices}");
    assert!(generation(&service) > newest_generation);
    assert!(fs::exists(temp.path().join(format!("{name}.damaged"))).unwrap());
    assert_eq!(status.ingest.accepted, 400);
    handle.shutdown(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn when_no_snapshot_can_be_read_the_samples_teach_it_again() {
    let temp = tempfile::tempdir().unwrap();
    let last = live(temp.path(), 0..200).await;
    for file in snapshot_files(temp.path()) {
        let mut bytes = fs::read(&file).unwrap();
        // Another feature schema: an upgrade.
        bytes[12] ^= 0xff;
        fs::write(&file, bytes).unwrap();
    }
    let (service, handle) = start(temp.path());
    assert!(generation(&service) > last);
    poll("it is fitted again", || service.status().ready).await;
    let status = service.status();
    assert_eq!(status.ingest.accepted, 200);
    assert!(status.persistence.notices[0].contains(".snapshot: snapshot schema"), "{:?}", status.persistence.notices);
    handle.shutdown(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn a_directory_in_use_newer_foreign_or_of_another_role_is_refused_with_what_to_do() {
    let temp = tempfile::tempdir().unwrap();
    let (_service, handle) = start(temp.path());
    assert!(refusal(params(temp.path())).contains("in use by another process"));
    handle.shutdown(DEADLINE).await.unwrap();
    let follower = ServiceParams {
        role: ServiceRole::Predict,
        follow: Some(FollowParams::new("http://127.0.0.1:9")),
        ..params(temp.path())
    };
    assert!(refusal(follower).contains("belongs to a learner, not a follower"));

    let marker = temp.path().join("foretoken.state");
    fs::write(&marker, "foretoken state format=7 lineage=0\n").unwrap();
    let newer = refusal(params(temp.path()));
    assert!(newer.contains("has format=7, this version supports format=1"), "{newer}");
    fs::write(&marker, "mine").unwrap();
    assert!(refusal(params(temp.path())).contains("not a foretoken state marker"));
}

#[tokio::test]
async fn a_disk_that_hangs_stalls_neither_learning_nor_serving_nor_ingest() {
    let temp = tempfile::tempdir().unwrap();
    // Opening a pipe for writing hangs until somebody reads: what a hanging disk does.
    let pipe = temp.path().join("snapshot.tmp");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let (service, handle) = start(temp.path());
    offer(&service, 0..300);
    poll("learning goes on", || generation(&service) >= 1).await;
    let first = generation(&service);
    // Until more has come than may wait for the disk; the trainer keeps up, so nothing is dropped.
    let mut offered = 300;
    while service.status().persistence.samples_unlogged == 0 {
        assert!(offered < 1_000_000, "the disk does not hang");
        offer(&service, 0..10_000);
        offered += 10_000;
        poll("the trainer keeps up", || service.status().ingest.queued == 0).await;
    }
    poll("learning still goes on", || generation(&service) > first).await;
    assert!(median_ttft_ms(&service) > 0.0);
    let status = service.status();
    assert_eq!((status.ingest.accepted, status.ingest.dropped), (offered, 0));

    // The disk comes back.
    let reader = std::thread::spawn(move || {
        let mut read = Vec::new();
        fs::File::open(&pipe).unwrap().read_to_end(&mut read).unwrap();
        read.len()
    });
    poll("writing works again", || {
        let persistence = service.status().persistence;
        persistence.ok && persistence.log_bytes > 0 && !snapshot_files(temp.path()).is_empty()
    })
    .await;
    assert!(reader.join().unwrap() > 0);
    handle.shutdown(DEADLINE).await.unwrap();
    let (again, handle) = start(temp.path());
    assert_eq!(again.status().ingest.accepted, offered, "the count knows of those that were not logged");
    handle.shutdown(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_hanging_disk_beyond_its_deadline() {
    let temp = tempfile::tempdir().unwrap();
    let pipe = temp.path().join("snapshot.tmp");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let (service, handle) = start(temp.path());
    offer(&service, 0..300);
    poll("a generation to write", || generation(&service) >= 1).await;
    let refused = handle.shutdown(Duration::from_millis(500)).await.unwrap_err();
    assert!(refused.to_string().contains("within 500 ms"), "{refused}");
    // Let the thread end.
    let mut read = Vec::new();
    fs::File::open(&pipe).unwrap().read_to_end(&mut read).unwrap();
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_is_said_served_around_and_recovered_from() {
    let temp = tempfile::tempdir().unwrap();
    let blocked = temp.path().join("mount");
    fs::write(&blocked, "a file where a directory should be").unwrap();
    let dir = blocked.join("state");
    let (service, handle) = start(&dir);
    poll("it is said at once", || !service.status().persistence.ok).await;
    offer(&service, 0..300);
    poll("learning and serving go on", || generation(&service) >= 1).await;
    let status = service.status();
    assert_eq!((status.ingest.accepted, status.ingest.dropped), (300, 0));
    assert!(status.persistence.failures > 0);
    assert!(status.persistence.error.unwrap().starts_with("cannot write the "));

    fs::remove_file(&blocked).unwrap();
    poll("it recovers by itself", || service.status().persistence.ok).await;
    handle.shutdown(DEADLINE).await.unwrap();
    assert_eq!(service.status().persistence.samples_unlogged, 0, "what had waited was written");
    let (again, handle) = start(&dir);
    assert_eq!(again.status().ingest.accepted, 300);
    poll("and read back", || again.status().persistence.samples_restored == 300).await;
    handle.shutdown(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn what_the_disk_never_took_is_counted_at_the_end() {
    let temp = tempfile::tempdir().unwrap();
    let blocked = temp.path().join("mount");
    fs::write(&blocked, "").unwrap();
    let (service, handle) = start(&blocked.join("state"));
    offer(&service, 0..30);
    let refused = handle.shutdown(DEADLINE).await.unwrap_err();
    assert!(
        refused.to_string().starts_with("the last state was not written: cannot write the sample log:"),
        "{refused}"
    );
    assert_eq!(service.status().persistence.samples_unlogged, 30);
}

#[tokio::test]
async fn forgotten_samples_do_not_come_back_and_stay_counted() {
    let temp = tempfile::tempdir().unwrap();
    let (service, handle) = start(temp.path());
    offer(&service, 0..300);
    poll("they are learnt", || service.survey_len() == 300).await;
    let flushed = service.flush(Flush { samples: true, accuracy: false, models: true }).await.unwrap();
    assert_eq!(flushed.samples, [300, 300]);
    let last = generation(&service);
    offer(&service, 300..305);
    handle.shutdown(DEADLINE).await.unwrap();
    let (service, handle) = start(temp.path());
    let status = service.status();
    assert_eq!((status.ingest.accepted, status.state), (305, State::Prior));
    assert!(generation(&service) >= last);
    poll("only the new ones come back", || service.status().persistence.samples_restored == 5).await;
    handle.shutdown(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn twenty_thousand_samples_on_disk_do_not_delay_the_first_answer() {
    let temp = tempfile::tempdir().unwrap();
    let params = || {
        let mut params = params(temp.path());
        params.learner.samples_max = 20_000;
        params.write = WriteParams { log: LogLimits { bytes_max: 64 << 20, ..LogLimits::default() }, ..params.write };
        params
    };
    let (service, handle) = Service::start(params()).unwrap();
    for round in 0..20 {
        offer(&service, round * 1_000..(round + 1) * 1_000);
    }
    poll("a fit", || generation(&service) >= 1).await;
    handle.shutdown(DEADLINE).await.unwrap();

    let began = Instant::now();
    let (service, handle) = Service::start(params()).unwrap();
    let answer = median_ttft_ms(&service);
    let took = began.elapsed();
    println!("start to first answer: {took:?}");
    assert!(answer > 0.0 && service.status().ready);
    poll("they come back behind that", || service.status().persistence.samples_restored == 20_000).await;
    poll("into the store", || service.survey_len() == 20_000).await;
    handle.shutdown(DEADLINE).await.unwrap();
}
