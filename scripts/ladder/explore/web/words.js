// Numbers with their units, and events in words.

function scaled(value, unit) {
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return (value / size).toPrecision(3) + " " + letter + unit;
  }
  return value.toLocaleString("en") + (unit ? " " + unit : "");
}
const exactly = (value, unit) => Math.round(value).toLocaleString("en") + (unit ? " " + unit : "");
const range = ([first, last]) => first === last ? `${first}` : `${first}–${last}`;
const rowsInWords = (rows) => (rows[0] === rows[1] ? "row " : "rows ") + range(rows);

// Counts that have other words than their keys.
const WORDS = { matmul_flops: "matmul FLOPs", exp_count: "exponentials", other_flops: "other FLOPs",
                sram_read_bytes: "B read from shared memory",
                sram_write_bytes: "B written to shared memory" };

/// What an event is, without who does it and where.
function deed(e) {
  const { what, name, rows } = e;
  const amounts = Object.entries(e.counts).filter(([, n]) => n)
    .map(([key, n]) => exactly(n, WORDS[key] || key.replaceAll("_", " "))).join(", ");
  const moved = `${exactly(e.bytes || 0, "B")} of ${name}` +
    (rows ? `, ${rowsInWords(rows)}` : "");
  const words = {
    read: `reads ${moved}${e.kind === "copy" ? " into shared memory" : ""}`,
    write: `writes ${moved}`,
    tma_load: `has TMA load ${moved}, for ${e.barrier}`,
    bulk_load: `has TMA load ${moved}, for ${e.barrier}`,
    tma_store: `has TMA store ${moved}`,
    bulk_add: `has TMA add ${moved.replace(" of ", " to ")}`,
    wgmma: `starts a product with ${name} by its warpgroup: ` +
      exactly(e.amount, "matmul FLOPs"),
    wgmma_wait: "waits for its warpgroup's products",
    cp_async_wait: "waits for its asynchronous copies",
    cp_async_commit: "closes a group of asynchronous copies",
    tma_store_wait: "waits until its stores have been read",
    mbarrier_wait: `waits at ${name} for the end of phase ${e.number}`,
    mbarrier_arrive: `arrives at ${name}, phase ${e.number}`,
    named_barrier_sync: `waits at named barrier ${name}`,
    named_barrier_arrive: `arrives at named barrier ${name}`,
    __syncthreads: `comes to __syncthreads number ${e.number + 1}`,
    store: `stores to ${name} in shared memory` +
      (e.source ? `, what it read of ${e.source}` : ""),
    zeros: "fills shared memory with zeros",
    compute: "computes",
    exit: "is done",
  }[what];
  return (words || `runs ${what}`) + (amounts && ` (${amounts})`);
}

function sentence(e) {
  return `${e.launch.kernel}, block ${e.block.number}, warp ${e.warp} ${deed(e)}` +
    (e.file ? ` · ${e.file}:${e.line}` : "");
}

/// Who has come to what an event waits for, up to `now`, and who has not.
function meetingOf(e, now) {
  if (e.awaits === undefined) return "";
  const { run } = e, [title, parts] = run.meetings[e.awaits], come = { true: {}, false: {} };
  for (const part of parts.map((index) => run.events[index])) {
    const here = come[(part.engine ? part.until : part.from) <= now];
    const who = !part.engine ? `warp ${part.warp}`
      : part.kind === "product" ? `product with ${part.name}`
      : `${part.direction === "read" ? "copy" : "store"} of ${part.name} ` +
        `(${exactly(part.bytes, "B")})`;
    here[who] = (here[who] || 0) + 1;
  }
  const all = (here) => Object.entries(here)
    .map(([who, times]) => times > 1 ? `${who} × ${times}` : who).join(", ") || "nobody";
  return !parts.length ? " — nothing was under way."
    : ` — ${title}. Arrived: ${all(come.true)}. Missing: ${all(come.false)}.`;
}
