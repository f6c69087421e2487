// Job queues of Node at the same work as ours; one line of JSON. See ../README.md.
import { createRequire } from 'node:module'
import pg from 'pg'
import { PgBoss } from 'pg-boss'
import { Logger, makeWorkerUtils, run } from 'graphile-worker'

const USAGE = 'usage: node peers.js pg-boss|graphile-worker insert|insert-one|drain|latency --url postgres://... [--count N] [--seconds S] [--rate R]'
// Messages in a transaction of `insert`.
const BATCH = 1000
// A peer that makes no progress for so long is given up.
const PATIENCE_MS = 60_000
const FIRST = 1_000_000_000
const PAD = 'x'.repeat(171)

const order = n => ({ order: FIRST + n, pad: PAD })
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))
const version = name => createRequire(import.meta.url)(`./node_modules/${name}/package.json`).version

// When each message reached the handler.
class Seen {
  constructor (count) {
    this.at = new Float64Array(count)
    this.all = 0
    this.distinct = 0
  }

  handle ({ order }) {
    const n = order - FIRST
    if (this.at[n] === 0) {
      this.at[n] = performance.now()
      this.distinct += 1
    }
    this.all += 1
  }

  verify () {
    const count = this.at.length
    if (this.all !== count || this.distinct !== count) {
      throw new Error(`the handler was called ${this.all} times for ${this.distinct} different messages of ${count}`)
    }
  }
}

class Boss {
  static async open (url) {
    const peer = new Boss()
    const options = { connectionString: url, useListenNotify: true, schedule: false, supervise: false }
    peer.worker = new PgBoss({ ...options, max: 5 })
    peer.producer = new PgBoss({ ...options, useListenNotify: false, max: 1 })
    for (const boss of [peer.worker, peer.producer]) {
      boss.on('error', error => { throw error })
      boss.on('warning', ({ message }) => console.error(`pg-boss: ${message}`))
      await boss.start()
    }
    await peer.worker.createQueue('orders', { notify: true })
    return peer
  }

  settings (work) {
    switch (work) {
      case 'insert': return 'insert of 1000'
      case 'insert-one': return 'send'
      default: return '2 workers, batch 500, burst while batches are full, LISTEN with a poll every 30 s behind it; no supervision, no schedules'
    }
  }

  insert (orders) {
    return this.producer.insert('orders', orders.map(data => ({ data })))
  }

  insertOne (data) {
    return this.producer.send('orders', data)
  }

  async start (seen) {
    await this.worker.work('orders', { batchSize: 500, localConcurrency: 2, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }, async jobs => {
      for (const job of jobs) seen.handle(job.data)
    })
    return () => this.worker.offWork('orders')
  }

  undone = "SELECT count(*) FROM pgboss.job WHERE name = 'orders' AND state <> 'completed'"
  done = "SELECT count(*) FROM pgboss.job WHERE name = 'orders' AND state = 'completed'"

  async close () {
    await this.producer.stop({ graceful: false })
    await this.worker.stop({ graceful: false })
  }
}

class Graphile {
  static async open (url) {
    const peer = new Graphile()
    peer.url = url
    peer.logger = new Logger(() => (level, message) => {
      if (level === 'error' || level === 'warning') console.error(`graphile-worker: ${message}`)
    })
    peer.producer = await makeWorkerUtils({ connectionString: url, maxPoolSize: 1, logger: peer.logger })
    await peer.producer.migrate()
    return peer
  }

  settings (work) {
    switch (work) {
      case 'insert': return 'addJobs of 1000'
      case 'insert-one': return 'addJob'
      default: return 'as its page on performance says: concurrency 24, 25 connections, local queue 500, completions and failures written together after 0 ms; LISTEN'
    }
  }

  insert (orders) {
    return this.producer.addJobs(orders.map(payload => ({ identifier: 'order', payload })))
  }

  insertOne (payload) {
    return this.producer.addJob('order', payload)
  }

  async start (seen) {
    const worker = {
      connectionString: this.url,
      concurrentJobs: 24,
      maxPoolSize: 25,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      logger: this.logger
    }
    const runner = await run({ preset: { worker }, taskList: { order: async payload => seen.handle(payload) }, noHandleSignals: true })
    return () => runner.stop()
  }

  undone = 'SELECT count(*) FROM graphile_worker._private_jobs'

  close () {
    return this.producer.release()
  }
}

function read (words) {
  const [peer, work, ...rest] = words
  const options = { peer, work, seconds: 10, rate: 500 }
  for (let at = 0; at < rest.length; at += 2) {
    const [name, value] = [rest[at], rest[at + 1]]
    if (name === '--url' && value) options.url = value
    else if (['--count', '--seconds', '--rate'].includes(name) && Number(value) > 0) options[name.slice(2)] = Number(value)
    else throw new Error(`${name} ${value ?? ''} is not understood; ${USAGE}`)
  }
  const known = ['pg-boss', 'graphile-worker'].includes(peer) && ['insert', 'insert-one', 'drain', 'latency'].includes(work)
  if (!known || !options.url) throw new Error(USAGE)
  return options
}

async function client (url) {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  return client
}

async function main () {
  const { peer: name, work, url, count: wanted, seconds, rate } = read(process.argv.slice(2))
  const database = `peers_${name.replace('-', '_')}_node`
  const admin = await client(url)
  const drop = `DROP DATABASE IF EXISTS ${database} WITH (FORCE)`
  await admin.query(drop)
  await admin.query(`CREATE DATABASE ${database}`)
  const own = new URL(url)
  own.pathname = `/${database}`
  const control = await client(own.href)
  const peer = await (name === 'pg-boss' ? Boss : Graphile).open(own.href)

  const count = async sql => Number((await control.query(sql)).rows[0].count)
  const load = async n => {
    for (let from = 0; from < n; from += BATCH) {
      await peer.insert(Array.from({ length: Math.min(BATCH, n - from) }, (_, i) => order(from + i)))
    }
  }
  const verifyLoaded = async n => {
    const found = await count(peer.undone)
    if (found !== n) throw new Error(`${n} messages were inserted, the tables have ${found}`)
  }
  const finished = async (seen, n) => {
    let before = 0
    let progress = performance.now()
    while (seen.all < n) {
      if (seen.all !== before) [before, progress] = [seen.all, performance.now()]
      if (performance.now() - progress > PATIENCE_MS) throw new Error(`only ${before} of ${n} messages were handled`)
      await sleep(1)
    }
    // Until the question was asked that found none left: what the question itself costs is ours, not theirs.
    const since = performance.now()
    for (;;) {
      const asked = performance.now()
      if (await count(peer.undone) === 0) return asked
      if (performance.now() - since > PATIENCE_MS) throw new Error('all were handled, but not all are recorded as done')
      await sleep(1)
    }
  }
  const verifyDrained = async (seen, n) => {
    seen.verify()
    const left = await count(peer.undone)
    if (left !== 0) throw new Error(`${left} messages are left in the tables`)
    const done = peer.done ? await count(peer.done) : n
    if (done !== n) throw new Error(`${done} of ${n} messages are recorded as done`)
  }
  const perSecond = (n, ms) => ({ per_second: Math.round(n / ms * 10_000) / 10 })

  const works = {
    async insert () {
      const n = wanted ?? 20_000
      const start = performance.now()
      await load(n)
      const took = performance.now() - start
      await verifyLoaded(n)
      return perSecond(n, took)
    },
    async 'insert-one' () {
      const n = wanted ?? 2000
      const start = performance.now()
      for (let i = 0; i < n; i++) await peer.insertOne(order(i))
      const took = performance.now() - start
      await verifyLoaded(n)
      return perSecond(n, took)
    },
    async drain () {
      const n = wanted ?? 20_000
      await load(n)
      await verifyLoaded(n)
      await control.query('ANALYZE')
      await control.query('CHECKPOINT')
      const seen = new Seen(n)
      const start = performance.now()
      const stop = await peer.start(seen)
      const took = await finished(seen, n) - start
      await stop()
      await verifyDrained(seen, n)
      return perSecond(n, took)
    },
    async latency () {
      // The first second fills pools and caches of statements, and is not counted.
      const [warm, n] = [rate, rate * (seconds + 1)]
      const seen = new Seen(n)
      const stop = await peer.start(seen)
      await sleep(1000)
      const committed = new Float64Array(n)
      const start = performance.now()
      for (let i = 0; i < n; i++) {
        const early = start + i * 1000 / rate - performance.now()
        if (early > 0) await sleep(early)
        await peer.insertOne(order(i))
        committed[i] = performance.now()
      }
      await finished(seen, n)
      await stop()
      await verifyDrained(seen, n)
      const times = seen.at.map((at, i) => Math.max(0, at - committed[i])).subarray(warm).sort()
      const percentile = part => Math.round(times[Math.floor((times.length - 1) * part)] * 1000) / 1000
      const took = committed[n - 1] - committed[warm - 1]
      return { p50_ms: percentile(0.5), p99_ms: percentile(0.99), offered_per_second: Math.round((n - warm) / took * 10_000) / 10 }
    }
  }
  const figures = await works[work]()
  const line = { peer: name, version: version(name), work, ...figures, settings: `${peer.settings(work)}; Node ${process.versions.node}` }
  await peer.close()
  await control.end()
  await admin.query(drop)
  await admin.end()
  return line
}

main().then(line => {
  console.log(JSON.stringify(line))
  process.exit(0)
}, error => {
  console.error(`peers: ${error.message}`)
  process.exit(1)
})
