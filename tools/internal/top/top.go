package top

import (
	"bytes"
	"context"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/command"
)

// Options of Run.
type Options struct {
	Dir      string
	Interval time.Duration // between frames; 1 s by default
	In, Out  *os.File      // a terminal
	// Ask gives the store's present Stats; store.AskAdmin on Dir when nil.
	Ask func(ctx context.Context) (skep.Stats, error)
}

// DefaultInterval is the time between frames.
const DefaultInterval = time.Second

func (o *Options) ensureDefaults() {
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Ask == nil {
		o.Ask = func(ctx context.Context) (st skep.Stats, err error) {
			err = store.AskAdmin(ctx, o.Dir, "stats", &st)
			return st, err
		}
	}
}

func (o *Options) sample(ctx context.Context) (Sample, error) {
	st, err := o.Ask(ctx)
	return Sample{time.Now(), st}, err
}

// Once takes two samples an interval apart.
func Once(ctx context.Context, o Options) (before, now Sample, err error) {
	o.ensureDefaults()
	if before, err = o.sample(ctx); err != nil {
		return before, now, err
	}
	select {
	case <-ctx.Done():
		return before, now, ctx.Err()
	case <-time.After(o.Interval):
	}
	now, err = o.sample(ctx)
	return before, now, err
}

// Terminal control: what every terminal of the last decades knows.
const (
	altScreen  = "\x1b[?1049h\x1b[?25l" // another screen, no cursor
	mainScreen = "\x1b[?25h\x1b[?1049l"
	home       = "\x1b[H"
	eraseLine  = "\x1b[K"
	eraseBelow = "\x1b[J"
)

// Run draws frames on a terminal until q, Escape or Ctrl-C is pressed, or gives ctx's error when that ends.
func Run(ctx context.Context, o Options) error {
	whole := ctx
	o.ensureDefaults()
	before, err := o.sample(ctx)
	if err != nil {
		return err
	}
	old, err := term.MakeRaw(int(o.In.Fd()))
	if err != nil {
		return err
	}
	defer term.Restore(int(o.In.Fd()), old)
	if _, err := io.WriteString(o.Out, altScreen); err != nil {
		return err
	}
	defer io.WriteString(o.Out, mainScreen)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go watchKeys(o.In, cancel) // ends with the process or the next key
	now, trouble := before, error(nil)
	before = Sample{}
	tick := time.NewTicker(o.Interval)
	defer tick.Stop()
	for {
		w, h, err := term.GetSize(int(o.Out.Fd()))
		if err != nil || w < 1 || h < 2 { // some terminals do not say
			w, h = MinWidth, 24
		}
		lines := Frame(before, now, o.Dir, w)
		if trouble != nil {
			lines = append([]string{"NOT ANSWERING: " + trouble.Error()}, lines...)
		}
		if _, err := o.Out.Write(Draw(lines, w, h)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return whole.Err()
		case <-tick.C:
		}
		next, err := o.sample(ctx)
		if trouble = err; err == nil {
			before, now = now, next
		}
	}
}

func watchKeys(in io.Reader, quit func()) {
	b := make([]byte, 1)
	for {
		n, err := in.Read(b)
		if err != nil {
			return
		}
		if n == 1 && (b[0] == 'q' || b[0] == 'Q' || b[0] == 3 || b[0] == 27) {
			quit()
			return
		}
	}
}

// Draw is what a terminal of so many columns and rows is sent for a frame.
func Draw(lines []string, width, height int) []byte {
	var b bytes.Buffer
	b.WriteString(home)
	foot := "q quits"
	for i, l := range lines {
		if i >= height-1 {
			break
		}
		l = command.Printable(l) // what is wrong may have several lines
		if r := []rune(l); len(r) > width {
			l = string(r[:width])
		}
		b.WriteString(l)
		b.WriteString(eraseLine + "\r\n")
	}
	b.WriteString(eraseBelow + foot)
	return b.Bytes()
}
