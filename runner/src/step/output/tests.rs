//! Tests of `output`.

use super::*;
use crate::step::live_output::{LiveOutputs, StreamState};
use crate::store::directory::Directory;
use proctor_core::model::names::{SkillName, StepName};
use std::io::Write as _;

const SECRET: &str = "s3cr3t-value";

fn outputs(temp: &tempfile::TempDir) -> Outputs {
    let objects = Objects::open(&Directory::open(temp.path()).expect("opens")).expect("opens");
    Outputs { objects, redactor: Redactor::from_environment([("A_TOKEN", SECRET)], |_| false) }
}

async fn drain_text(text: Vec<u8>, keep: u64) -> (StreamEvidence, Vec<u8>) {
    let temp = tempfile::tempdir().expect("temp");
    let outputs = outputs(&temp);
    let stream = drain_text_into(&outputs, text, keep).await;
    let kept = outputs.read(&stream).expect("reads");
    (stream, kept)
}

async fn drain_text_into(outputs: &Outputs, text: Vec<u8>, keep: u64) -> StreamEvidence {
    let (reader, writer) = std::io::pipe().expect("pipe");
    let feeder = std::thread::spawn(move || {
        let mut writer = writer;
        writer.write_all(&text).expect("writes");
    });
    let stream = drain(reader.into(), keep, outputs.clone(), None, CancellationToken::new()).await;
    feeder.join().expect("fed");
    stream
}

#[tokio::test]
async fn hashes_all_bytes_and_previews_both_ends() {
    let text: Vec<u8> = (0..1_000_000u32).flat_map(|i| format!("{i}\n").into_bytes()).collect();
    let (stream, kept) = drain_text(text.clone(), 1000).await;
    assert_eq!(stream.sha256, Sha256Hex::digest(&text));
    assert_eq!((stream.bytes, stream.kept_bytes, stream.complete), (text.len() as u64, 1000, true));
    assert_eq!((stream.preview.as_bytes(), stream.redacted), (&text[..PREVIEW_BYTES], 0));
    assert_eq!(stream.tail.as_bytes(), &text[text.len() - PREVIEW_BYTES..]);
    assert_eq!(kept, text[..1000]);
}

#[tokio::test]
async fn short_output_is_all_preview() {
    let (stream, kept) = drain_text(b"hi".to_vec(), 1000).await;
    assert_eq!((stream.preview.as_str(), stream.tail.as_str()), ("hi", ""));
    assert_eq!(kept, b"hi");
}

#[tokio::test]
async fn secret_is_hashed_but_redacted_in_stored_and_shown_text() {
    let text = format!("a {SECRET} b\n").into_bytes();
    let (stream, kept) = drain_text(text.clone(), 1000).await;
    assert_eq!((stream.sha256, stream.bytes, stream.kept_bytes), (Sha256Hex::digest(&text), 17, 17));
    assert_eq!((stream.preview.as_str(), stream.redacted), ("a [redacted] b\n", 1));
    assert_eq!(kept, b"a [redacted] b\n");
}

#[test]
fn stores_whole_file_with_redacted_secrets() {
    let temp = tempfile::tempdir().expect("temp");
    let outputs = outputs(&temp);
    for (text, kept, secrets) in
        [("<a/>".to_owned(), "<a/>", 0), (format!("<a b='{SECRET}'/>"), "<a b='[redacted]'/>", 1)]
    {
        let (sha256, redacted) = outputs.store_file(text.as_bytes()).expect("keeps");
        assert_eq!((&sha256, redacted), (&Sha256Hex::digest(text.as_bytes()), secrets));
        let kind = if secrets > 0 { StoredForm::Redacted } else { StoredForm::Whole };
        let object = outputs.objects.read(&sha256, kind, 99).expect("reads").expect("is kept");
        assert_eq!(object, kept.as_bytes());
    }
    assert_eq!(outputs.store_file(b""), Some((Sha256Hex::digest(b""), 0)));
}

#[tokio::test]
async fn part_includes_total_readable_length() {
    let temp = tempfile::tempdir().expect("temp");
    let outputs = outputs(&temp);
    let secret = format!("a {SECRET} b\n");
    for (text, keep, kept) in
        [("hello", 9, "hello"), ("hello", 3, "hel"), (secret.as_str(), 99, "a [redacted] b\n"), ("", 9, "")]
    {
        let stream = drain_text_into(&outputs, text.into(), keep).await;
        let part = |offset, limit| {
            let part = read_part(&outputs.objects, &StreamView::from(&stream), offset, limit);
            let (part, length) = part.expect("reads").expect("is kept");
            (String::from_utf8(part.bytes).expect("text"), part.has_more, length)
        };
        assert_eq!(part(0, 99), (kept.to_owned(), false, kept.len() as u64));
        assert_eq!(part(2, 1), (kept.chars().skip(2).take(1).collect(), kept.len() > 3, kept.len() as u64));
        assert_eq!(part(99, 99), (String::new(), false, kept.len() as u64));
    }
}

#[tokio::test]
async fn redacts_secrets_that_cross_edges() {
    // One secret crosses the end of the preview, one the output limit, and one the start of the tail.
    let filler = |length: usize| ".".repeat(length);
    let (edge, cut) = (PREVIEW_BYTES - 5, 20_000 - 5);
    let middle = filler(cut - edge - SECRET.len());
    let end = filler(PREVIEW_BYTES - 5);
    let text = format!("{}{SECRET}{middle}{SECRET}{}{SECRET}{end}", filler(edge), filler(9000));
    let (stream, kept) = drain_text(text.into_bytes(), 20_000).await;
    assert_eq!(stream.preview, filler(edge) + "[redacted]");
    assert_eq!(stream.tail, "[redacted]".to_owned() + &end);
    assert_eq!(kept, format!("{}[redacted]{middle}[redacted]", filler(edge)).into_bytes());
    assert_eq!((stream.redacted, stream.kept_bytes), (3, 20_000));
}

#[tokio::test]
async fn redacts_secrets_between_ends() {
    let text = format!("{}{SECRET}{}", " ".repeat(300_000), " ".repeat(300_000));
    let (stream, kept) = drain_text(text.into_bytes(), 1 << 20).await;
    assert_eq!((stream.redacted, kept.len()), (1, 600_010));
    assert!(!String::from_utf8_lossy(&kept).contains(SECRET));
}

/// Returns what readers see of an output that arrives in `pieces` with a pause after each, and what is stored.
async fn read_and_stored(pieces: &[&str], keep: u64) -> (Vec<Vec<u8>>, Vec<u8>) {
    let temp = tempfile::tempdir().expect("temp");
    let (outputs, live) = (outputs(&temp), LiveOutputs::default());
    let (skill, step) = (SkillName::new("s").expect("a name"), StepName::new("t").expect("a name"));
    let [out, _err] = live.begin_attempt(&skill, &step, 1);
    let stream = live.step("s", "t").expect("it runs").stdout;
    let (reader, mut writer) = std::io::pipe().expect("pipe");
    let stop = CancellationToken::new();
    let draining = tokio::spawn(drain(reader.into(), keep, outputs.clone(), Some(out), stop));
    let mut seen = vec![Vec::new()];
    for piece in pieces {
        writer.write_all(piece.as_bytes()).expect("writes");
        // Wait for the bytes that a pause releases, or for the end of the stored output.
        let before = seen.concat().len() as u64;
        let more = tokio::time::timeout(4 * RELEASE_AFTER, stream.wait_beyond(before)).await;
        tokio::time::sleep(2 * RELEASE_AFTER).await;
        seen.push(more.map_or_else(|_| Vec::new(), |_| stream.read(before, usize::MAX).expect("reads")));
    }
    drop(writer);
    let evidence = draining.await.expect("drains");
    let before = seen.concat().len() as u64;
    assert_eq!(stream.wait_beyond(u64::MAX).await.state, StreamState::Ended);
    seen.push(stream.read(before, usize::MAX).expect("reads"));
    (seen, outputs.read(&evidence).expect("reads"))
}

#[tokio::test(start_paused = true)]
async fn readers_get_stored_bytes_without_partial_secrets() {
    let (seen, kept) = read_and_stored(&["building\nkey s3cr", "3t-va", "lue\n", "done"], 1000).await;
    let text: Vec<String> = seen.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    assert_eq!(text, ["", "building\nkey ", "", "[redacted]\n", "done", ""]);
    assert_eq!(seen.concat(), kept);
}

#[tokio::test(start_paused = true)]
async fn readers_get_no_more_than_is_stored() {
    // The limit cuts through a secret.
    let (seen, kept) = read_and_stored(&["0123 s3cr3t-value", " more"], 10).await;
    assert_eq!((seen.concat(), kept), (b"0123 [redacted]".to_vec(), b"0123 [redacted]".to_vec()));
}

#[tokio::test]
async fn stops_reading_held_pipe_and_keeps_received_bytes() {
    let temp = tempfile::tempdir().expect("temp");
    let (reader, mut writer) = std::io::pipe().expect("pipe");
    writer.write_all(b"so far").expect("writes");
    let stop = CancellationToken::new();
    stop.cancel();
    let stream = drain(reader.into(), 1000, outputs(&temp), None, stop).await;
    assert_eq!((stream.preview.as_str(), stream.complete), ("so far", false));
    drop(writer);
}

proptest::proptest! {
    #[test]
    fn tail_buffer_holds_last_bytes(chunks in proptest::collection::vec(proptest::collection::vec(0u8..255, 0..3000), 0..12)) {
        let mut tail = TailBuffer { capacity: PREVIEW_BYTES, bytes: Vec::new() };
        chunks.iter().for_each(|chunk| tail.push(chunk));
        let all: Vec<u8> = chunks.concat();
        let expected = &all[all.len().saturating_sub(PREVIEW_BYTES)..];
        proptest::prop_assert_eq!(tail.into_bytes(), expected);
    }
}

#[test]
fn received_stream_has_the_evidence_of_a_drained_one() {
    let temp = tempfile::tempdir().expect("temp");
    let outputs = outputs(&temp);
    let text = format!("a {SECRET} b\n").into_bytes();
    let sha256 = Sha256Hex::digest(&text);
    let whole = ReceivedStream { head: &text, tail: b"", bytes: text.len() as u64, sha256: &sha256, complete: true };
    let stream = store_received(whole, 1000, &outputs, None).expect("its digest");
    assert_eq!((&stream.sha256, stream.bytes, stream.redacted), (&sha256, 17, 1));
    assert_eq!(outputs.read(&stream).expect("reads"), b"a [redacted] b\n");
    let other = Sha256Hex::digest(b"other");
    assert!(store_received(ReceivedStream { sha256: &other, ..whole }, 1000, &outputs, None).is_none());
}

#[test]
fn received_stream_with_a_gap_shows_both_ends() {
    let temp = tempfile::tempdir().expect("temp");
    let outputs = outputs(&temp);
    let (head, tail) = (vec![b'h'; 20_000], vec![b't'; 20_000]);
    let sha256 = Sha256Hex::digest(b"what the worker hashed");
    let cut = ReceivedStream { head: &head, tail: &tail, bytes: 1_000_000, sha256: &sha256, complete: true };
    let stream = store_received(cut, u64::MAX, &outputs, None).expect("a gap");
    assert_eq!((stream.bytes, stream.kept_bytes, &stream.sha256), (1_000_000, 20_000, &sha256));
    assert_eq!((stream.preview.as_bytes(), stream.tail.as_bytes()), (&head[..PREVIEW_BYTES], &tail[..PREVIEW_BYTES]));
    assert_eq!(outputs.read(&stream).expect("reads"), head);
    let overlapping = ReceivedStream { bytes: 30_000, ..cut };
    assert!(store_received(overlapping, u64::MAX, &outputs, None).is_none(), "the parts are longer than the stream");
}
