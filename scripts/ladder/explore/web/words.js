// Puts numbers with units, and events, into words.

/// Returns a number to three digits with a prefix from k to T, such as "1.05 MB"; k is 1000.
function scaled(value, unit) {
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= 0.9995 * size) return (value / size).toPrecision(3) + " " + letter + unit;
  }
  return value.toLocaleString("en") + (unit ? " " + unit : "");
}
const exactly = (value, unit) => Math.round(value).toLocaleString("en") + (unit ? " " + unit : "");
const range = ([first, last]) => first === last ? `${first}` : `${first}–${last}`;
const rowsInWords = (rows) => (rows[0] === rows[1] ? "row " : "rows ") + range(rows);

/// Describes an event in the source's names: the kernel, block and warp; the rows, bytes, barrier
/// and array; the counts; and the line.
function sentence(e) {
  const doing = e.kind === "collective" ? e.name : e.kind;
  const about = [e.name !== doing && e.name, e.rows && rowsInWords(e.rows),
                 e.bytes && exactly(e.bytes, "B"), e.barrier && `for ${e.barrier}`,
                 e.kind.startsWith("mbarrier") && `phase ${e.number}`,
                 e.source && `values read from ${e.source}`].filter(Boolean).join(", ");
  const flops = e.kind === "wgmma" && { matmul_flops: e.amount };
  const amounts = Object.entries({ ...e.counts, ...flops })
    .map(([key, n]) => exactly(n, key.replaceAll("_", " "))).join(", ");
  return `${e.launch.kernel}, block ${e.block.number}, warp ${e.warp}: ` +
    [doing, about, amounts && `(${amounts})`].filter(Boolean).join(" ") +
    (e.file ? ` · ${e.file}:${e.line}` : "");
}

/// Lists the warps, copies and products that have arrived, by tick `now`, at the barrier or in the
/// group that an event waits for, and those that are missing.
function meetingOf(e, now) {
  if (e.awaits === undefined) return "";
  const { run } = e, [title, parts] = run.meetings[e.awaits], come = { true: {}, false: {} };
  for (const part of parts.map((index) => run.events[index])) {
    const here = come[(part.engine ? part.until : part.begin) <= now];
    const who = !part.engine ? `warp ${part.warp}`
      : part.category === "product" ? `product with ${part.name}`
      : `${/read|load/.test(part.kind) ? "copy" : "store"} of ${part.name} ` +
        `(${exactly(part.bytes, "B")})`;
    here[who] = (here[who] || 0) + 1;
  }
  const all = (here) => Object.entries(here)
    .map(([who, times]) => times > 1 ? `${who} × ${times}` : who).join(", ") || "none";
  return !parts.length ? " — nothing was in flight."
    : ` — ${title}. Arrived: ${all(come.true)}. Missing: ${all(come.false)}.`;
}
