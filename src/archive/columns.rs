//! The columns of the archive's Parquet files: what they are called, and how lines are written to
//! row groups and read from them. Amounts are INT64 in nano-USD.

use std::ops::Range;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::RowGroupReader;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, Type};

use super::fault::ArchiveFault;
use super::line::{LineColumns, signed_amounts};
use crate::ledger::{AccountName, EntryKind, JournalEntry};
use crate::money::Money;
use crate::usage::PostedEntry;

/// What wrote a file, as the file says.
const CREATED_BY: &str = "tollgate journal archive, format 1";

/// The number of lines of a page, the least that is read of a column: an account's lines of a day
/// are most often in one or two.
const PAGE_LINES: usize = 1_024;

/// A line with its account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ArchivedLine {
    pub(super) account: AccountName,
    pub(super) posted: PostedEntry,
}

/// A line, and what its columns are taken from.
struct Row<'a> {
    line: &'a ArchivedLine,
    columns: LineColumns,
}

/// Where the values of a column come from.
#[derive(Clone, Copy)]
enum Source {
    Number(fn(&Row<'_>) -> Option<i64>),
    Time(fn(&Row<'_>) -> Option<i64>),
    Text(for<'a> fn(&'a Row<'_>) -> Option<&'a str>),
}

/// A column.
struct Column {
    name: &'static str,
    is_required: bool,
    source: Source,
}

const fn required(name: &'static str, source: Source) -> Column {
    Column { name, is_required: true, source }
}

const fn optional(name: &'static str, source: Source) -> Column {
    Column { name, is_required: false, source }
}

/// All columns, in the order of the files.
const COLUMNS: [Column; 28] = [
    required("account", Source::Text(|row| Some(row.line.account.as_str()))),
    required("seq", Source::Number(|row| i64::try_from(row.line.posted.entry.seq).ok())),
    required("kind", Source::Text(|row| Some(row.line.posted.entry.kind.as_str()))),
    required("amount_nano", Source::Number(|row| Some(row.line.posted.entry.amount.nano()))),
    required(
        "written_off_nano",
        Source::Number(|row| Some(row.line.posted.entry.written_off.nano())),
    ),
    required("posted_change_nano", Source::Number(|row| Some(signed_amounts(&row.line.posted).0))),
    required(
        "written_off_change_nano",
        Source::Number(|row| Some(signed_amounts(&row.line.posted).1)),
    ),
    optional("posted_at", Source::Time(|row| row.line.posted.posted_at)),
    optional("at", Source::Time(|row| row.columns.number("at"))),
    optional(
        "request_id",
        Source::Text(|row| row.columns.text("request_id").or(row.columns.text("corrects"))),
    ),
    optional("key_id", Source::Number(|row| row.columns.number("key_id"))),
    optional("key_prefix", Source::Text(|row| row.columns.text("key_prefix"))),
    optional("endpoint", Source::Text(|row| row.columns.text("endpoint"))),
    optional("model", Source::Text(|row| row.columns.text("model"))),
    optional("vendor", Source::Text(|row| row.columns.text("vendor"))),
    optional("route", Source::Text(|row| row.columns.text("route"))),
    optional("basis", Source::Text(|row| row.columns.text("basis"))),
    optional("price_version", Source::Text(|row| row.columns.text("price_version"))),
    optional("book", Source::Text(|row| row.columns.text("book"))),
    optional("prompt_tokens", Source::Number(|row| row.columns.units("prompt_tokens"))),
    optional("completion_tokens", Source::Number(|row| row.columns.units("completion_tokens"))),
    optional("cached_tokens", Source::Number(|row| row.columns.units("cached_tokens"))),
    optional("characters", Source::Number(|row| row.columns.units("characters"))),
    optional("images", Source::Number(|row| row.columns.units("images"))),
    optional("seconds", Source::Number(|row| row.columns.units("seconds"))),
    optional("list_nano", Source::Number(|row| row.columns.number("list_nano"))),
    optional("cost_nano", Source::Number(|row| row.columns.number("cost_nano"))),
    required("line", Source::Text(|row| Some(&row.line.posted.entry.line))),
];

/// Columns whose values are nearly all different, so that a dictionary of them only costs.
const UNIQUE_COLUMNS: [&str; 2] = ["line", "request_id"];

/// Returns the schema of the files.
fn schema() -> ParquetResult<Arc<Type>> {
    let column = |column: &Column| {
        let repetition = if column.is_required { "REQUIRED" } else { "OPTIONAL" };
        let name = column.name;
        match column.source {
            Source::Number(_) => format!("{repetition} INT64 {name};"),
            Source::Time(_) => format!("{repetition} INT64 {name} (TIMESTAMP(MILLIS,true));"),
            Source::Text(_) => format!("{repetition} BYTE_ARRAY {name} (STRING);"),
        }
    };
    let columns: Vec<String> = COLUMNS.iter().map(column).collect();
    Ok(Arc::new(parse_message_type(&format!("message journal {{ {} }}", columns.join(" ")))?))
}

fn properties() -> ParquetResult<WriterProperties> {
    let mut builder = WriterProperties::builder()
        .set_created_by(CREATED_BY.to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_data_page_row_count_limit(PAGE_LINES)
        .set_statistics_enabled(EnabledStatistics::Chunk);
    for name in UNIQUE_COLUMNS {
        builder = builder
            .set_column_dictionary_enabled(ColumnPath::from(name), false)
            .set_column_statistics_enabled(ColumnPath::from(name), EnabledStatistics::None);
    }
    Ok(builder.build())
}

/// A Parquet file that is being written to memory.
pub(super) struct PartWriter(SerializedFileWriter<Vec<u8>>);

impl PartWriter {
    /// Begins a file.
    ///
    /// # Errors
    /// [`ArchiveFault::Differs`] with what the Parquet library says.
    pub(super) fn new() -> Result<PartWriter, ArchiveFault> {
        let writer = || SerializedFileWriter::new(Vec::new(), schema()?, Arc::new(properties()?));
        writer().map(PartWriter).map_err(|why| parquet_fault(&why))
    }

    /// Writes lines as a row group.
    ///
    /// # Errors
    /// [`ArchiveFault::Differs`] with what the Parquet library says.
    pub(super) fn write_group(&mut self, lines: &[ArchivedLine]) -> Result<(), ArchiveFault> {
        self.try_write_group(lines).map_err(|why| parquet_fault(&why))
    }

    fn try_write_group(&mut self, lines: &[ArchivedLine]) -> ParquetResult<()> {
        let row = |line| Row { line, columns: LineColumns::parse(&line.posted.entry.line) };
        let rows: Vec<Row<'_>> = lines.iter().map(row).collect();
        let mut group = self.0.next_row_group()?;
        for column in &COLUMNS {
            match column.source {
                Source::Number(of) | Source::Time(of) => {
                    let values = rows.iter().map(of).collect();
                    write_column::<Int64Type>(&mut group, column, values)?;
                }
                Source::Text(of) => {
                    let values = rows.iter().map(|row| of(row).map(ByteArray::from)).collect();
                    write_column::<ByteArrayType>(&mut group, column, values)?;
                }
            }
        }
        group.close().map(drop)
    }

    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// [`ArchiveFault::Differs`] with what the Parquet library says.
    pub(super) fn finish(self) -> Result<Vec<u8>, ArchiveFault> {
        self.0.into_inner().map_err(|why| parquet_fault(&why))
    }
}

/// Writes the values of a column to a row group. An optional one has a level for each row: 1 if it
/// has a value.
fn write_column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    column: &Column,
    values: Vec<Option<T::T>>,
) -> ParquetResult<()> {
    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let present: Vec<T::T> = values.into_iter().flatten().collect();
    if column.is_required && present.len() != levels.len() {
        return Err(ParquetError::General(format!("{} is missing in a line", column.name)));
    }
    let Some(mut writer) = group.next_column()? else {
        return Err(ParquetError::General(format!("{} has no place", column.name)));
    };
    let levels = (!column.is_required).then_some(&levels[..]);
    writer.typed::<T>().write_batch(&present, levels, None)?;
    writer.close()
}

/// Reads lines of a row group: those of the rows `rows`, from 0.
///
/// # Errors
/// [`ArchiveFault::Differs`] if they cannot be read as they were written.
pub(super) fn read_rows(
    group: &dyn RowGroupReader,
    rows: Range<usize>,
) -> Result<Vec<ArchivedLine>, ArchiveFault> {
    let number = |name| read_column::<Int64Type>(group, name, &rows);
    let text = |name| read_column::<ByteArrayType>(group, name, &rows);
    let read = || {
        Ok::<_, ParquetError>((
            [number("seq")?, number("amount_nano")?, number("written_off_nano")?],
            number("posted_at")?,
            [text("account")?, text("kind")?, text("line")?],
        ))
    };
    let (numbers, posted_at, texts) = read().map_err(|why| parquet_fault(&why))?;
    let line = |row: usize| {
        let number = |column: usize| numbers.get(column)?.get(row).copied().flatten();
        let text = |column: usize| texts.get(column)?.get(row)?.as_ref()?.as_utf8().ok();
        let entry = JournalEntry {
            seq: u64::try_from(number(0)?).ok()?,
            kind: kind_of(text(1)?)?,
            amount: Money::from_nano(number(1)?).ok()?,
            written_off: Money::from_nano(number(2)?).ok()?,
            line: text(2)?.to_owned(),
        };
        let account = AccountName::parse(text(0)?)?;
        let posted_at = *posted_at.get(row)?;
        Some(ArchivedLine { account, posted: PostedEntry { entry, posted_at } })
    };
    let lines = rows.clone().enumerate().map(|(at, row)| {
        line(at).ok_or_else(|| ArchiveFault::Differs(format!("row {row} is no journal line")))
    });
    lines.collect()
}

/// Reads rows of a column of a row group. A value that is not there is `None`.
fn read_column<T: DataType>(
    group: &dyn RowGroupReader,
    name: &str,
    rows: &Range<usize>,
) -> ParquetResult<Vec<Option<T::T>>> {
    let metadata = group.metadata();
    let at = metadata.columns().iter().position(|column| column.column_path().string() == name);
    let Some(at) = at else {
        return Err(ParquetError::General(format!("there is no column '{name}'")));
    };
    let mut reader = get_typed_column_reader::<T>(group.get_column_reader(at)?);
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    if reader.skip_records(rows.start)? == rows.start {
        reader.read_records(rows.len(), Some(&mut levels), None, &mut values)?;
    }
    if metadata.column(at).column_descr().max_def_level() == 0 {
        return Ok(values.into_iter().map(Some).collect());
    }
    let mut values = values.into_iter();
    Ok(levels.into_iter().map(|level| if level > 0 { values.next() } else { None }).collect())
}

fn kind_of(name: &str) -> Option<EntryKind> {
    [EntryKind::Charge, EntryKind::Correction, EntryKind::Expiry]
        .into_iter()
        .find(|kind| kind.as_str() == name)
}

/// Returns the fault of a file that the Parquet library cannot write or read.
pub(super) fn parquet_fault(why: &ParquetError) -> ArchiveFault {
    ArchiveFault::Differs(why.to_string())
}
