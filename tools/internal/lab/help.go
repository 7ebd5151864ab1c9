package lab

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/skepkv/skep/layout/twopointer"
)

// describe gives commands what --help tells of them. docs/reference/bench.md has what holds of all.
func describe(commands []*cobra.Command) []*cobra.Command {
	for _, c := range commands {
		if text, ok := long[c.Name()]; ok {
			c.Long = text
		}
	}
	return commands
}

func models() string {
	var names []string
	for _, m := range twopointer.Models() {
		names = append(names, m.Name)
	}
	return strings.Join(names, ", ")
}

func gpus() string {
	var names []string
	for _, g := range twopointer.GPUs() {
		names = append(names, g.Name)
	}
	return strings.Join(names, ", ")
}

var long = map[string]string{
	"restore": `Restores a chain that no cache holds, whole blocks head first (whole) and layer by layer (layers-up,
where the block size is a multiple of 128 KiB), in three overlapping sessions of 64 MiB each into
registered memory. Before the rounds it is compared byte by byte.`,

	"put": `Puts a chain into a new store each round, three puts of 64 MiB at a time, acknowledged as committed
(class cache). The limit writes as many bytes sequentially to fresh preallocated files. Neither flushes.`,

	"device": `Random reads of one fully written file through package store/device, with each I/O engine there is.`,

	"lookup": `Longest-prefix lookups of random chains of 1 to twice --keys, while another goroutine puts chains and
has old ones evicted. Finding, leasing and giving the lease back are timed, making the keys is not.
Row index is package index alone, in a process whose peak memory is measured; store is the Store
interface with real blocks on devices. Rows "names still" and "names change" are that store without
puts, the latter while 100 namespaces a second are made and as many purged.`,

	"resp": `GET and SET over RESP on loopback, one client, beside Redis where it is installed: skep serve with all
values in DRAM, without DRAM tier, and with TLS. The limit is a bare connection that moves the same
bytes, or the drives. A SET is answered when its value outlives the server; beside it are Redis with
the same promise (appendonly yes, appendfsync always) and the drives written without a server. CPU is
the server process's, in hundredths of a second: runs shorter than a second say little. Linux only.`,

	"engines": `The Python package skepkv, whose blocks lie in memory shared with a skep serve, in turns with the store in
this process and with Mooncake Store, whose blocks another process has and which is asked over TCP without
copies (batch_put_from, batch_get_into). Blocks are put, got from the drive, read until the DRAM tier has them,
and got from there; every byte is compared. Last in a round are lookups of --keys keys over the Unix socket. --python
imports skepkv, so set PYTHONPATH and SKEPKV_LIBRARY in a checkout; --mooncake-python imports Mooncake
(pip install mooncake-transfer-engine-non-cuda). What cannot be imported is named and left out. Linux only.
With --nodes it is a cluster, of one and of two copies, on loopback, beside Mooncake's master and as many processes
with a segment each. With --kill a process is killed instead, a node or who leads, and counted is what blocks come,
until when calls fail, and what comes back when the process is started again.`,

	"wire": `The binary protocol's client on one machine, beside the embedded store and iperf3: servers without DRAM
tier, with a chain in it, and with TLS, every byte compared. Last comes overload: --connections ask,
each on its own clock, for ten times what a few were served before. Linux only.`,

	"rebuild": `Fills a store, closes it, and in turns reads raw what a rebuild must read, and removes the catalog and
rebuilds it. The store must find all its blocks again.`,

	"overload": `Measures what --clients get out of a store, each making one request after the other; offers --times as
much for --seconds, whatever becomes of earlier requests; then looks how soon the store is itself
again. What it cannot take is refused as overloaded. Memory is the growth of the process's peak
resident size against the store's cap; the load generator is in it, and takes its share of the CPU.`,

	"recover": `A process puts chains, four puts at a time, and is sent SIGKILL once --blocks are acknowledged. The page
cache is dropped where that is allowed (root), the store is opened and asked for what was
acknowledged.`,

	"elastic": `Moves the border between a lender's own blocks and those it lends, with blocks in use at random on both
sides: in the block-major layout of the GPU tier, where a move copies nothing; and in the layer-major
one of most engines' pools, in host memory with slots of --slot-bytes, far below a real one, so that
its times are a lower bound.`,

	"reclaim": `How fast lent GPU memory comes back, and how fast a borrower does without it. GPUs are simulated:
processes, sockets, locks and the scheduler are real, copies take what the simulation takes to carry
them out. skep-gpu bench reclaim is the same on a GPU, in builds by make cuda. Linux only.`,

	"ttft": `Time to first token of recorded prompts under each way of restoring what is stored of them. The store is
real, on two file devices slowed down in process (simulated); bytes a token and bandwidth are divided
by --divide, so that times stay what they would be. The engine is emulated: its steps only take time,
by a formula that is not the scheduler's, with up to 20 % noise, everything twice as slow from the
middle of the run on, and a decoding batch in every step.

Models: ` + models() + `. GPUs: ` + gpus() + `.
Load closed: a loop of --batch requests with a stored prefix; open: all requests, at rates at which
recomputing everything keeps the engine busy for --utilisation of the time; single: one request of 1k
to 64k tokens after another, without noise. Engine round-robin: every request advances each round;
first-come: in order of arrival, 8,192 tokens a step. Prompts longer than --context keep what is new
(at most half) and as much of their stored prefix as fits.

What of a prompt is stored is its longest prefix among all prompts before it. Mooncake's batched
arrivals are spread over 3 s; kv-cache-tester's sessions begin within 10 minutes; half of Azure's
prompts, which have no block ids, get a stored prefix of .3 to .95 of the prompt. A request with
nothing stored counts for TTFT only.`,

	"crossover": `From which length on a prefix is restored faster by tokens than by layers, on the emulated engine in
virtual time: with whole chunks, each a launch of its own; and as skep restores, with few launches and
a split anywhere, beside what a store estimates. Models and GPUs are those of ttft.`,

	"interfere": `Restores of random chains are due at random times at half of the drives' bandwidth, and timed from when
they were due, without and with background work in turns: move reads, checks and writes again, as
garbage collection and draining do; scrub reads.`,

	"loss": `Restores go on at a quarter of the drives' bandwidth while drive 1 of a store with two copies is lost;
then its copies are made again. A hung drive does what it is asked and says nothing. Exit code 1: a
restore missed anything.`,
}
