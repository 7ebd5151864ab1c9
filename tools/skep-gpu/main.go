// Command skep-gpu is the process that has a GPU: one that lends memory of it, or one that
// serves a skep store with GPU memory, own and borrowed, in front. A driver's errors, and a
// lender that wants its memory back from a borrower that hangs, end this process and no
// other; engines then reach the store behind directly.
//
//	skep-gpu lend --socket S --units N --border B     orders on standard input: border N, need R A G
//	skep-gpu serve --behind ADDR --listen ADDR --borrow S
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/cuda"
	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/gpu/sim"
	"github.com/skepkv/skep/layout/elastic"
	"github.com/skepkv/skep/tools/internal/units"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/auth"
	"github.com/skepkv/skep/wire/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	root := command(os.Stdin, os.Stdout)
	root.SetArgs(os.Args[1:])
	err := root.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// backend is which GPUs there are.
type backend struct {
	name   string
	number int
	memory int64
}

func (b *backend) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&b.name, "backend", "sim", "sim (simulated: nothing is measured) or cuda (in builds by make cuda)")
	cmd.Flags().IntVar(&b.number, "gpu", 0, "number of the GPU")
	units.SizeVar(cmd.Flags(), &b.memory, "sim-size", 1<<30, "memory of a simulated GPU", "sim-bytes")
}

// open gives a GPU by its number.
func (b *backend) open() (func(number int) (gpu.Device, error), error) {
	switch b.name {
	case "sim":
		o := sim.H20()
		o.MemoryBytes = b.memory
		w, err := sim.New(o)
		return func(n int) (gpu.Device, error) {
			if n < 0 || n >= o.Devices {
				return nil, skep.Invalidf("skep-gpu", "--gpu", n, fmt.Sprintf("0 to %d", o.Devices-1))
			}
			return w.Device(n), nil
		}, err
	case "cuda":
		return func(n int) (gpu.Device, error) { return cuda.Open(n, cuda.Options{}) }, nil
	}
	return nil, skep.Invalidf("skep-gpu", "--backend", b.name, "sim or cuda")
}

// sharer is a device whose memory goes between processes.
func sharer(d gpu.Device) (gpu.Sharer, error) {
	if s, ok := d.(gpu.Sharer); ok {
		return s, nil
	}
	return nil, &skep.Error{Op: "skep-gpu", Kind: skep.Unsupported, Field: "GPU", Value: d.Name(), Limit: "one whose memory other processes can map"}
}

func command(in io.Reader, out io.Writer) *cobra.Command {
	root := &cobra.Command{Use: "skep-gpu", Short: "the process that has a GPU", SilenceErrors: true, SilenceUsage: true}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) { units.Tell(cmd.Flags(), cmd.ErrOrStderr()) }
	root.AddCommand(lendCommand(in, out), serveCommand(out), benchCommand(in, out))
	return root
}

func lendCommand(in io.Reader, out io.Writer) *cobra.Command {
	var b backend
	var o loan.LenderOptions
	border := 0
	cmd := &cobra.Command{
		Use: "lend", Args: cobra.NoArgs, Short: "lend memory of a GPU to other processes",
		Long: `Allocates an arena and lends what is above the border. Orders on standard input move it, each answered by one
line of JSON once the units are this side's; the input's end ends it:

  border N          the border to unit N
  need R A G        at least so far up that this side has blocks for R of running requests, A of admitted
                    ones, and G by which they may grow; with --headroom it goes down again when a window
                    has needed less`,
	}
	b.flags(cmd)
	var metrics string
	headroom := -1
	f := cmd.Flags()
	f.StringVar(&metrics, "metrics", "", "host:port or unix:path to serve Prometheus metrics at, /metrics")
	f.IntVar(&headroom, "headroom", -1, "blocks of this side's to keep beyond the peak of a window; below 0 the border goes down only when told")
	f.DurationVar(&o.Window, "window", time.Minute, "of that peak")
	f.StringVar(&o.Socket, "socket", "", "where borrowers connect (required)")
	f.StringVar(&o.Name, "name", "", "of the model, for people")
	f.IntVar(&o.Units, "units", 64, "of the arena")
	f.IntVar(&o.Floor, "floor", 0, "units never lent")
	f.IntVar(&border, "border", 0, "units this side keeps at first")
	f.IntVar(&o.Borrowers, "borrowers", 1, "at a time; each gets an equal share at most")
	units.SizeVar(f, &o.Unit.Bytes, "unit-size", elastic.Granule, "bytes of a unit", "unit-bytes")
	units.SizeVar(f, &o.Unit.LenderBlock, "lender-block", elastic.Granule, "bytes of this side's blocks")
	units.SizeVar(f, &o.Unit.BorrowerBlock, "borrower-block", elastic.Granule, "bytes of borrowers' blocks")
	f.DurationVar(&o.Lease, "lease", time.Second, "how long a borrower may be silent")
	f.DurationVar(&o.Reclaim, "reclaim", 250*time.Millisecond, "how long it has to give back; then its process is killed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Unit.LenderBlock < 1 || o.Unit.BorrowerBlock < 1 {
			return skep.Invalidf("skep-gpu lend", "bytes of blocks", fmt.Sprint(o.Unit.LenderBlock, " ", o.Unit.BorrowerBlock), "1 or more")
		}
		o.Unit.Lender, o.Unit.Borrower = int(o.Unit.Bytes/o.Unit.LenderBlock), int(o.Unit.Bytes/o.Unit.BorrowerBlock)
		open, err := b.open()
		if err != nil {
			return err
		}
		d, err := open(b.number)
		if err != nil {
			return err
		}
		if o.Device, err = sharer(d); err != nil {
			return err
		}
		l, err := loan.Lend(o)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.Close(), d.Close()) }()
		end, err := measure(metrics, l)
		if err != nil {
			return err
		}
		defer end()
		return orders(cmd.Context(), l, in, out, border, headroom)
	}
	return cmd
}

// moved answers an order.
type moved struct {
	Border    int     `json:"border"` // units of this side
	Ms        float64 `json:"ms"`     // until they were
	Simulated bool    `json:"simulated"`
	Error     string  `json:"error,omitempty"`
}

// orders moves the border first, and then as it is told to the end of the input or of ctx.
func orders(ctx context.Context, l *loan.Lender, in io.Reader, out io.Writer, border, headroom int) error {
	lines, ended := make(chan string), make(chan struct{})
	defer close(ended)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-ended:
				return
			}
		}
	}()
	relax := time.NewTicker(time.Second)
	defer relax.Stop()
	for order, more := fmt.Sprint("border ", border), true; more; {
		began := time.Now()
		err := obey(ctx, l, order)
		s := l.Status()
		m := moved{Border: s.Border, Ms: float64(time.Since(began)) / 1e6, Simulated: s.Simulated}
		if err != nil {
			m.Error = err.Error()
		}
		if err := json.NewEncoder(out).Encode(m); err != nil {
			return err
		}
		for waiting := true; waiting; {
			select {
			case order, more = <-lines:
				waiting = false
			case <-relax.C:
				if headroom >= 0 {
					l.Relax(headroom)
				}
			case <-ctx.Done():
				return nil
			}
		}
	}
	return nil
}

// obey carries out one order.
func obey(ctx context.Context, l *loan.Lender, order string) error {
	var border int
	var d elastic.Demand
	if _, err := fmt.Sscanf(order, "border %d", &border); err == nil {
		return l.Move(ctx, border)
	}
	if _, err := fmt.Sscanf(order, "need %d %d %d", &d.Running, &d.Admitted, &d.Growth); err == nil {
		return l.Demand(ctx, d)
	}
	return fmt.Errorf("%q is no order, must be: border N, or need RUNNING ADMITTED GROWTH", order)
}

func serveCommand(out io.Writer) *cobra.Command {
	var b backend
	var o gpu.Options
	var behind, token, listen, metrics string
	var borrow []string
	lenders := 0
	cmd := &cobra.Command{
		Use: "serve", Args: cobra.NoArgs, Short: "a store with GPU memory, own and borrowed, in front",
		Long: "Serves the binary protocol on a Unix socket to this user, who speaks for the token's tenant. Blocks come out of GPU memory where they are there, and else\nfrom the server behind. A lender that goes away takes its blocks along, and no other; who lends at its socket next is borrowed from again.",
	}
	b.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&behind, "behind", "", "the skep server behind: host:port or unix:path (required)")
	f.StringVar(&token, "token", "", "for the server behind")
	f.StringVar(&listen, "listen", "", "path of the Unix socket to serve at (required)")
	f.IntVar(&o.Local, "local", 0, "blocks kept in the GPU's own memory")
	units.SizeVar(f, &o.BlockBytes, "block-size", elastic.Granule, "bytes of the largest block kept: the lender's --borrower-block", "block-bytes")
	f.DurationVar(&o.Timeout, "timeout", time.Second, "how long the GPU may take for one copy; after that its memory is used no more")
	f.StringArrayVar(&borrow, "borrow", nil, "socket of a lender; can be given several times")
	f.IntVar(&lenders, "lender-gpu", 1, "number of the lenders' GPU")
	units.SizeVar(f, &o.PinnedBytes, "pinned", 64<<20, "pinned host memory that restores land in, and the GPU copies from; 0: none", "pinned-bytes")
	f.StringVar(&metrics, "metrics", "", "host:port or unix:path to serve Prometheus metrics at, /metrics")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		open, err := b.open()
		if err != nil {
			return err
		}
		if o.Device, err = open(b.number); err != nil {
			return err
		}
		client, err := wire.Dial(cmd.Context(), wire.Options{Addr: behind, Token: token, Name: "skep-gpu"})
		if err != nil {
			return err
		}
		st, err := gpu.New(client, o)
		if err != nil {
			return errors.Join(err, client.Close())
		}
		defer func() { err = errors.Join(err, st.Close()) }()
		log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
		collect := []prometheus.Collector{st}
		for _, socket := range borrow {
			d, err := open(lenders)
			if err != nil {
				return err
			}
			s, err := sharer(d)
			if err != nil {
				return err
			}
			l, err := loan.Keep(loan.BorrowerOptions{Socket: socket, Name: "skep-gpu " + listen, Device: s, Tier: st, Log: log}, time.Second)
			if err != nil {
				return err
			}
			collect = append(collect, l)
			defer func() { err = errors.Join(err, l.Close()) }()
		}
		end, err := measure(metrics, collect...)
		if err != nil {
			return err
		}
		defer end()
		whoever, err := auth.OpenAs(client.Identity())
		if err != nil {
			return err
		}
		return serve(cmd.Context(), st, whoever, strings.TrimPrefix(listen, "unix:"), out)
	}
	return cmd
}

func serve(ctx context.Context, st skep.Store, whoever *auth.Directory, path string, out io.Writer) error {
	srv, err := server.New(st, server.Options{Name: "skep-gpu", Auth: whoever})
	if err != nil {
		return err
	}
	ln, err := listen("--listen", "unix:"+path) // it asks for no credentials
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, "serving at", path); err != nil {
		return errors.Join(err, ln.Close())
	}
	return srv.Serve(ctx, ln)
}
