package reclaim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/layout/elastic"
)

// Open gives this process's GPUs: 0 the borrower's own, 1 the lender's.
type Open func(number int) (gpu.Device, error)

// Options are those of Measure.
type Options struct {
	// Machine gives GPUs that were not opened before.
	Machine func() (Open, error)
	// Child prepares a process that calls Run with a role and a socket.
	Child func(ctx context.Context, role, socket string) (*exec.Cmd, error)
	Moves int // of the border, each of which takes one unit from a borrower
	Kills int // of borrowers, and as many of lenders
	Note  func(format string, args ...any)
}

// The roles of children.
const (
	Borrower = "borrower"
	Lender   = "lender"
)

// Row is one thing that was timed, in milliseconds.
type Row struct {
	// reclaim: from the order to the unit's being the lender's; borrower killed: from SIGKILL to all it had being the
	// lender's; lender killed: from SIGKILL to the end of a whole restore without it
	What    string    `json:"what"`
	Times   int       `json:"times"`      // how often
	P50     float64   `json:"p50_ms"`     // median (ms)
	P99     float64   `json:"p99_ms"`     // 99th percentile (ms)
	Most    float64   `json:"most_ms"`    // the longest (ms)
	Samples []float64 `json:"samples_ms"` // all of them (ms)
}

// Result is what Measure found.
type Result struct {
	Bench     string `json:"bench"`        // reclaim
	Simulated bool   `json:"simulated"`    // the GPUs are a simulation
	Device    string `json:"device"`       // the lender's GPU
	Method    string `json:"method"`       // what is real in it
	UnitBytes int64  `json:"unit_bytes"`   // of a unit (bytes)
	Blocks    int    `json:"blocks"`       // of the chain that is restored all the time (blocks)
	Restores  int64  `json:"restores"`     // restores of the chain, every byte compared
	Wrong     int64  `json:"wrong_blocks"` // that came back with other bytes than were put (blocks)
	Rows      []Row  `json:"rows"`         // by what was done to whom
}

const (
	units     = 9
	perUnit   = 8
	unitBytes = elastic.Granule
	op        = "bench reclaim"
	// patience ends nobody: a loaded machine is no reason to.
	patience = time.Minute
)

var unit = elastic.Unit{Bytes: unitBytes, LenderBlock: blockBytes, BorrowerBlock: blockBytes, Lender: perUnit, Borrower: perUnit}

// Measure runs all of it.
func Measure(ctx context.Context, o Options) (res *Result, err error) {
	if o.Moves < 1 || o.Moves > 1e6 || o.Kills < 0 || o.Kills > 1e4 {
		return nil, skep.Invalidf(op, "--moves and --kills", fmt.Sprint(o.Moves, " ", o.Kills), "1 to 1000000 and 0 to 10000")
	}
	dir, err := os.MkdirTemp("", "skep-reclaim-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	m := &measurement{o: o, dir: dir, res: &Result{
		Bench: "reclaim", UnitBytes: unitBytes, Blocks: chainBlocks,
		Method: "processes, sockets, locks and the scheduler are real; on a simulated GPU copies take what the simulation takes to carry them out",
	}}
	for _, f := range []func(context.Context) error{m.reclaims, m.lenderKills} {
		if err := f(ctx); err != nil {
			return nil, err
		}
	}
	return m.res, nil
}

type measurement struct {
	o   Options
	dir string
	res *Result
}

func (m *measurement) row(what string, took []time.Duration) {
	if len(took) == 0 {
		return
	}
	r := Row{What: what, Times: len(took)}
	for _, d := range took {
		r.Samples = append(r.Samples, float64(d)/1e6)
	}
	sorted := slices.Sorted(slices.Values(r.Samples))
	at := func(share float64) float64 { return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))] }
	r.P50, r.P99, r.Most = at(.5), at(.99), sorted[len(sorted)-1]
	m.res.Rows = append(m.res.Rows, r)
}

// child starts a process and gives the lines it says.
func (m *measurement) child(ctx context.Context, role, socket string) (*process, error) {
	cmd, err := m.o.Child(ctx, role, socket)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd}
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.out = bufio.NewScanner(out)
	return p, nil
}

type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// end closes its input and waits for its end; kill does not ask.
func (p *process) end() error {
	p.in.Close()
	for p.out.Scan() {
	}
	return p.cmd.Wait()
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.end()
}

// full reads a borrower's rounds until one found all of the chain in lent memory.
func (m *measurement) full(p *process) error {
	for p.out.Scan() {
		var hits int
		var wrong int64
		if _, err := fmt.Sscanf(p.out.Text(), "hits %d wrong %d", &hits, &wrong); err != nil {
			return fmt.Errorf("%s: the borrower says %q", op, p.out.Text())
		}
		m.res.Restores++
		m.res.Wrong += wrong
		if hits == chainBlocks {
			return nil
		}
	}
	return fmt.Errorf("%s: the borrower ended: %w", op, p.cmd.Wait())
}

// reclaims has this process lend: it takes units from a borrower at work, and kills borrowers.
func (m *measurement) reclaims(ctx context.Context) (err error) {
	open, err := m.o.Machine()
	if err != nil {
		return err
	}
	d, err := open(1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	m.res.Simulated, m.res.Device = d.Simulated(), d.Name()
	s, ok := d.(gpu.Sharer)
	if !ok {
		return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "GPU", Value: d.Name(), Limit: "one whose memory other processes can map"}
	}
	socket := filepath.Join(m.dir, "lender")
	l, err := loan.Lend(loan.LenderOptions{Socket: socket, Name: op, Device: s, Unit: unit, Units: units, Floor: 1, Lease: patience, Reclaim: patience})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := l.Move(ctx, 1); err != nil {
		return err
	}
	m.o.Note("%d moves", m.o.Moves)
	var took []time.Duration
	p, err := m.child(ctx, Borrower, socket)
	if err != nil {
		return err
	}
	for range m.o.Moves {
		if err := m.full(p); err != nil {
			return err
		}
		began := time.Now()
		if err := l.Move(ctx, 2); err != nil {
			return err
		}
		took = append(took, time.Since(began))
		if err := l.Move(ctx, 1); err != nil {
			return err
		}
	}
	if err := p.end(); err != nil {
		return fmt.Errorf("%s: the borrower: %w", op, err)
	}
	m.row("reclaim", took)

	m.o.Note("%d borrowers to be killed", m.o.Kills)
	took = nil
	for range m.o.Kills {
		if p, err = m.child(ctx, Borrower, socket); err != nil {
			return err
		}
		if err := m.full(p); err != nil {
			return err
		}
		began := time.Now()
		_ = p.cmd.Process.Kill()
		if err := l.Move(ctx, units); err != nil {
			return err
		}
		took = append(took, time.Since(began))
		_ = p.end()
		if err := l.Move(ctx, 1); err != nil {
			return err
		}
	}
	m.row("borrower killed", took)
	return nil
}

// lenderKills has this process borrow, of lenders that are killed.
func (m *measurement) lenderKills(ctx context.Context) (err error) {
	m.o.Note("%d lenders to be killed", m.o.Kills)
	open, err := m.o.Machine()
	if err != nil {
		return err
	}
	b, err := newBorrower(open)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	var took []time.Duration
	for i := range m.o.Kills {
		socket := filepath.Join(m.dir, fmt.Sprint("lender-", i))
		p, err := m.child(ctx, Lender, socket)
		if err != nil {
			return err
		}
		if !p.out.Scan() {
			return fmt.Errorf("%s: the lender ended: %w", op, p.end())
		}
		l, err := b.borrow(socket)
		if err != nil {
			p.kill()
			return err
		}
		d, err := m.without(b, p)
		p.kill()
		if err = errors.Join(err, l.Close()); err != nil {
			return err
		}
		took = append(took, d)
	}
	m.row("lender killed", took)
	return nil
}

// without kills the lender while the borrower restores from it, and says how long it took until a
// restore was whole without it.
func (m *measurement) without(b *borrower, p *process) (time.Duration, error) {
	var began time.Time
	for killed := false; ; {
		hits, wrong, err := b.restore()
		if err != nil {
			return 0, err
		}
		m.res.Restores++
		m.res.Wrong += wrong
		switch {
		case !killed && hits == chainBlocks:
			began, killed = time.Now(), true
			go func() { _ = p.cmd.Process.Kill() }() // a restore is under way meanwhile
		case killed && hits == 0:
			return time.Since(began), nil
		}
	}
}

// Print shows a result to people.
func Print(w io.Writer, r *Result) {
	fmt.Fprintf(w, "%s (simulated: %v), units of %d MiB\n", r.Device, r.Simulated, r.UnitBytes>>20)
	for _, x := range r.Rows {
		fmt.Fprintf(w, "  %-16s %6d times   p50 %8.2f ms   p99 %8.2f ms   most %8.2f ms\n", x.What, x.Times, x.P50, x.P99, x.Most)
	}
	fmt.Fprintf(w, "%d restores of %d blocks compared, %d blocks wrong\n%s\n", r.Restores, r.Blocks, r.Wrong, r.Method)
}
