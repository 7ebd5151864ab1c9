package resp

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/tools/drawn"
)

// A Redis is told what a server of ours is told, commands drawn at random, and their answers are compared. What the
// page on RESP says is different is not drawn: evictions, commands that are not there, words of errors behind the first.
//
// It lasts for SKEP_DIFFERENTIAL_TIME, or some hundred rounds.
func TestDifferential(t *testing.T) {
	t.Parallel()
	seed := drawn.Seed(t)
	var long time.Duration
	if v := os.Getenv("SKEP_DIFFERENTIAL_TIME"); v != "" {
		var err error
		long, err = time.ParseDuration(v)
		require.NoError(t, err)
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		for _, version := range []string{"2", "3"} {
			t.Run(name+", RESP"+version, func(t *testing.T) {
				t.Parallel()
				d := &differ{t: t, rng: rand.New(rand.NewPCG(seed, uint64(version[0]))), theirs: dialReal(t, name), ours: serve(t, nil, Options{Clock: time.Now, Wall: time.Now}).dial()}
				d.both("HELLO", version)
				ctx, cancel := context.WithTimeout(t.Context(), long)
				defer cancel()
				for round := 0; round < 300 || ctx.Err() == nil; round++ {
					d.round()
				}
				t.Logf("SKEP_SEED=%d: %d commands", seed, d.commands)
			})
		}
	}
}

// dialReal starts a real server without persistence, on a socket of its own.
func dialReal(t *testing.T, name string) *client {
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip(name + " is not installed")
	}
	dir, err := os.MkdirTemp("", "r") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	cmd := exec.Command(path, "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", dir)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var c net.Conn
	require.Eventually(t, func() bool { c, err = net.Dial("unix", socket); return err == nil }, time.Minute, 10*time.Millisecond)
	t.Cleanup(func() { c.Close() })
	return &client{t, c, bufio.NewReader(c)}
}

// differ draws commands and compares.
type differ struct {
	t        *testing.T
	rng      *rand.Rand
	theirs   *client
	ours     *client
	commands int
	past     bool // keys were given a moment that is past
	history  []string
}

// both gives a command to both and does not compare.
func (d *differ) both(args ...string) {
	for _, c := range []*client{d.theirs, d.ours} {
		c.do(args...)
	}
}

// round is a pipeline of some commands, answered by both in the same way.
func (d *differ) round() {
	var list [][]string
	var out []byte
	for range 1 + d.rng.IntN(20) {
		args := d.draw()
		list, out = append(list, args), append(out, encode(args...)...)
	}
	for _, c := range []*client{d.theirs, d.ours} {
		_, err := c.Write(out)
		require.NoError(d.t, err)
	}
	d.commands += len(list)
	for _, args := range list {
		what := short(args)
		d.history = append(d.history[max(0, len(d.history)-30):], what)
		want, got := d.theirs.reply(), d.ours.reply()
		if d.same(args, want, got) {
			continue
		}
		d.t.Fatalf("%s\n  theirs %.300s\n  ours   %.300s\nbefore it:\n%s", what, want, got, strings.Join(d.history, "\n"))
	}
}

// short is a command with long arguments cut.
func short(args []string) string {
	list := make([]string, len(args))
	for i, a := range args {
		if list[i] = strconv.Quote(a[:min(len(a), 30)]); len(a) > 30 {
			list[i] += fmt.Sprintf("+%d", len(a)-30)
		}
	}
	return strings.Join(list, " ")
}

var inList = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// same says whether two answers say the same: of times to live, within a minute; of errors, the first word; of lists
// that are in no order, what is in them; of how many keys there are, nothing once some have run out, which are counted
// until somebody looks.
func (d *differ) same(args []string, a, b string) bool {
	if a == b {
		return true
	}
	if strings.HasPrefix(a, "-") && strings.HasPrefix(b, "-") {
		a, _, _ = strings.Cut(a, " ")
		b, _, _ = strings.Cut(b, " ")
		return a == b
	}
	x, err1 := strconv.ParseInt(a, 10, 64)
	y, err2 := strconv.ParseInt(b, 10, 64)
	switch strings.ToUpper(args[0]) {
	case "DBSIZE":
		return d.past && err1 == nil && err2 == nil
	case "TTL":
		return err1 == nil && err2 == nil && x > 0 && y > 0 && max(x-y, y-x) <= 60
	case "PTTL":
		return err1 == nil && err2 == nil && x > 0 && y > 0 && max(x-y, y-x) <= 60_000
	case "SCAN":
		m, n := inList.FindAllString(a, -1), inList.FindAllString(b, -1)
		slices.Sort(m)
		slices.Sort(n)
		return slices.Equal(m, n)
	}
	return false
}

func pick[T any](d *differ, of ...T) T { return of[d.rng.IntN(len(of))] }

func (d *differ) key() string {
	return pick(d, "", "a", "b", "key:1", "key:2", "\x00\r\n", "*3", "{x}y", "ключ", strings.Repeat("k", 300))
}

func (d *differ) value() string {
	n := pick(d, 0, 1, 5, 100, 4000, 16<<10, 17000, 70_000)
	if d.rng.IntN(40) == 0 {
		n = 1<<20 + d.rng.IntN(1<<20)
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(d.rng.Uint32())
	}
	return string(b)
}

// number is one, or what is none.
func (d *differ) number() string {
	return pick(d, "0", "-1", "-5", "1.5", "abc", "", " 5", "5 ", "+5", "05", "9223372036854775807", "-9223372036854775808",
		"9223372036854775808", "99999999999999999999")
}

// lasting is a time to live; no two are alike, so that it does not matter in which millisecond they begin.
func (d *differ) lasting() string {
	if d.rng.IntN(3) == 0 {
		return d.number()
	}
	return strconv.FormatInt(100_000+d.rng.Int64N(1e9), 10)
}

// when is a moment that is past, or far off, in seconds or, by 1,000, milliseconds.
func (d *differ) when(by int64) string {
	if d.rng.IntN(4) == 0 {
		return d.number()
	}
	if d.rng.IntN(3) == 0 {
		d.past = true
		return strconv.FormatInt(pick(d, 1, time.Now().Unix()-1000)*by, 10)
	}
	return strconv.FormatInt((time.Now().Unix()+10_000+d.rng.Int64N(1e6))*by, 10)
}

func (d *differ) keys(n int) (list []string) {
	for range n {
		list = append(list, d.key())
	}
	return list
}

// draw is a command, now and then one that nobody should send.
func (d *differ) draw() []string {
	args := d.proper()
	switch d.rng.IntN(30) {
	case 0:
		args = args[:1+d.rng.IntN(len(args))]
	case 1:
		args = append(args, pick(d, "x", "EX", "NX", "", "10"))
	case 2:
		args[0] = strings.ToLower(args[0])
	case 3:
		if len(args) > 2 {
			i, j := 1+d.rng.IntN(len(args)-1), 1+d.rng.IntN(len(args)-1)
			if max(len(args[i]), len(args[j])) <= 300 {
				args[i], args[j] = args[j], args[i]
			}
		}
	case 4:
		return []string{pick(d, "NOSUCH", "", "get get", "G\x00ET"), d.key()}
	}
	if known := slices.Contains([]string{"SET", "SCAN", "FLUSHDB", "SELECT"}, strings.ToUpper(args[0])); known && len(args) > 1 {
		for _, a := range args[1:] {
			if strings.EqualFold(a, "GET") || strings.EqualFold(a, "TYPE") { // not there, and said so on the page
				return []string{"PING"}
			}
		}
	}
	return args
}

func (d *differ) proper() []string {
	k := d.key()
	switch d.rng.IntN(26) {
	case 0, 1, 2:
		args := []string{"SET", k, d.value()}
		for range d.rng.IntN(3) {
			switch d.rng.IntN(6) {
			case 0:
				args = append(args, pick(d, "NX", "XX", "nx", "xX"))
			case 1:
				args = append(args, pick(d, "EX", "ex"), d.lasting())
			case 2:
				args = append(args, "PX", d.lasting())
			case 3:
				args = append(args, "EXAT", d.when(1))
			case 4:
				args = append(args, "PXAT", d.when(1000))
			case 5:
				args = append(args, "KEEPTTL")
			}
		}
		return args
	case 3, 4:
		return []string{"GET", k}
	case 5:
		return append([]string{"MGET"}, d.keys(1+d.rng.IntN(6))...)
	case 6:
		args := []string{"MSET"}
		for range 1 + d.rng.IntN(4) {
			args = append(args, d.key(), d.value())
		}
		return args
	case 7:
		return append([]string{pick(d, "EXISTS", "TOUCH")}, d.keys(1+d.rng.IntN(6))...)
	case 8:
		return append([]string{pick(d, "DEL", "UNLINK")}, d.keys(1+d.rng.IntN(4))...)
	case 9:
		return []string{pick(d, "STRLEN", "TYPE"), k}
	case 10:
		return []string{"SETNX", k, d.value()}
	case 11:
		return []string{pick(d, "SETEX", "PSETEX"), k, d.lasting(), d.value()}
	case 12, 13:
		return []string{pick(d, "TTL", "PTTL"), k}
	case 14, 15:
		args := []string{pick(d, "EXPIRE", "PEXPIRE"), k, d.lasting()}
		if d.rng.IntN(2) == 0 {
			args = append(args, pick(d, "NX", "XX", "GT", "LT", "gt"))
		}
		return args
	case 16:
		args := []string{"EXPIREAT", k, d.when(1)}
		if d.rng.IntN(2) == 0 {
			args = append(args, pick(d, "NX", "XX", "GT", "LT"))
		}
		return args
	case 17:
		return []string{"PEXPIREAT", k, d.when(1000)}
	case 18:
		return []string{"PERSIST", k}
	case 19:
		return []string{"DBSIZE"}
	case 20:
		return []string{"SCAN", "0", "COUNT", "1000"}
	case 21:
		if d.rng.IntN(6) == 0 {
			return []string{pick(d, "FLUSHDB", "FLUSHALL")}
		}
		return []string{"SCAN", "0", "MATCH", pick(d, "*", "key:*", "?", "[ab]", "\\*3", "k*", "nothing"), "COUNT", "1000"}
	case 22:
		return []string{"SELECT", pick(d, "0", "1", "15", "16", "-1", "x")}
	case 23:
		return []string{"ECHO", d.value()}
	case 24:
		return []string{"PING", k}
	}
	return []string{"PING"}
}
