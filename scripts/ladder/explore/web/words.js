// Numbers with their units, and events in words.

const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

function scaled(value, unit) {
  for (const [size, letter] of UNITS) {
    if (value >= size) return (value / size).toPrecision(3) + " " + letter + unit;
  }
  return value.toLocaleString("en") + (unit ? " " + unit : "");
}
const exactly = (value, unit) => Math.round(value).toLocaleString("en") + (unit ? " " + unit : "");

function where(run, i) {
  const { file, line } = run.columns;
  return file[i] >= 0 ? `${run.files[file[i]].path}:${line[i]}` : "";
}

function fromTo(run, i) {
  const rows = run.rowsOf(i);
  return rows ? (rows[0] === rows[1] ? `, row ${rows[0]}` : `, rows ${rows[0]} to ${rows[1]}`) : "";
}

// What TMA is asked for.
const LOADS = ["tma_load", "bulk_load"], STORES = ["tma_store", "bulk_add"];

/// What an event is, without who does it and where.
function deed(run, i) {
  const c = run.columns, what = run.what(i), name = run.name(i);
  const amounts = [];
  if (c.matmul[i]) amounts.push(exactly(c.matmul[i], "matmul FLOPs"));
  if (c.exps[i]) amounts.push(exactly(c.exps[i], "exponentials"));
  if (c.other[i]) amounts.push(exactly(c.other[i], "other FLOPs"));
  if (c.sramRead[i]) amounts.push(exactly(c.sramRead[i], "B read from shared memory"));
  if (c.sramWrite[i]) amounts.push(exactly(c.sramWrite[i], "B written to shared memory"));
  const also = amounts.length ? ` (${amounts.join(", ")})` : "";
  const barrier = run.names[c.barrier[i]];
  const into = run.kind(i) === "copy" ? " into shared memory" : "";
  switch (what) {
    case "read": return `reads ${exactly(c.bytes[i], "B")} of ${name}${fromTo(run, i)}` +
      into + also;
    case "write": return `writes ${exactly(c.bytes[i], "B")} of ${name}${fromTo(run, i)}${also}`;
    case "tma_load":
    case "bulk_load": return `has TMA load ${exactly(c.bytes[i], "B")} of ${name}` +
      `${fromTo(run, i)}, for ${barrier}`;
    case "tma_store": return `has TMA store ${exactly(c.bytes[i], "B")} of ${name}` +
      fromTo(run, i);
    case "bulk_add": return `has TMA add ${exactly(c.bytes[i], "B")} to ${name}` +
      fromTo(run, i);
    case "wgmma": return `starts a product with ${name} by its warpgroup: ` +
      exactly(c.amount[i], "matmul FLOPs");
    case "wgmma_wait": return "waits for its warpgroup's products" + also;
    case "cp_async_wait": return "waits for its asynchronous copies" + also;
    case "cp_async_commit": return "closes a group of asynchronous copies" + also;
    case "tma_store_wait": return "waits until its stores have been read" + also;
    case "mbarrier_wait": return `waits at ${name} for the end of phase ${c.number[i]}` + also;
    case "mbarrier_arrive": return `arrives at ${name}, phase ${c.number[i]}` + also;
    case "named_barrier_sync": return `waits at named barrier ${name}` + also;
    case "named_barrier_arrive": return `arrives at named barrier ${name}` + also;
    case "__syncthreads": return `comes to __syncthreads number ${c.number[i] + 1}` + also;
    case "compute": return amounts.length ? `computes: ${amounts.join(", ")}` : "computes";
    case "store": return `stores to ${name} in shared memory` +
      (run.sources[i] !== undefined ? `, what it read of ${run.name(run.sources[i])}` : "") + also;
    case "zeros": return "fills shared memory with zeros" + also;
    case "exit": return "is done";
    default: return `runs ${what}${also}`;
  }
}

function whoOf(run, i) {
  const c = run.columns, launch = run.launches[c.launch[i]];
  return `${launch.kernel}, block ${c.block[i]}, warp ${c.warp[i]}`;
}

function sentence(run, i) {
  const at = where(run, i);
  return `${whoOf(run, i)} ${deed(run, i)}${at ? " · " + at : ""}`;
}

/// Who has come to what event i waits for, up to `now`, and who has not.
function meetingOf(run, i, clock, now) {
  const meeting = run.columns.meeting[i];
  if (meeting < 0) return null;
  const [name, number, parts] = run.barriers[meeting];
  const told = new Map();
  for (const part of parts) {
    const engine = [...LOADS, ...STORES, "wgmma"].includes(run.what(part)) ||
      (run.what(part) === "read");
    const here = (engine ? clock.until(part) : clock.from[part]) <= now;
    const who = LOADS.includes(run.what(part))
      ? `copy of ${run.name(part)} (${exactly(run.columns.amount[part], "B")})`
      : run.what(part) === "wgmma" ? `product with ${run.name(part)}`
      : run.what(part) === "tma_store" ? `store of ${run.name(part)}`
      : run.what(part) === "bulk_add" ? `addition to ${run.name(part)}`
      : run.what(part) === "read"
      ? `copy of ${run.name(part)} (${exactly(run.columns.bytes[part], "B")})`
      : `warp ${run.columns.warp[part]}`;
    const entry = told.get(who + here) || { who, here, times: 0 };
    ++entry.times;
    told.set(who + here, entry);
  }
  const list = (here) => [...told.values()].filter((one) => one.here === here)
    .map((one) => one.times > 1 ? `${one.who} × ${one.times}` : one.who);
  const waiters = run.waiters[meeting].filter((w) => clock.from[w] <= now && clock.to[w] > now)
    .map((w) => run.columns.warp[w]).sort((a, b) => a - b);
  return { title: name.includes("[") ? `mbarrier ${name}, phase ${number}`
             : name === "__syncthreads" ? `__syncthreads number ${number + 1}` : name,
           arrived: list(true), missing: list(false), waiters, over: clock.to[i] <= now };
}
