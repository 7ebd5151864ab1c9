package remote

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/wire/resp"
)

// keyFlags are those of commands that name values.
type keyFlags struct {
	ns  string
	hex bool
}

func (f *keyFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.ns, "ns", "0", "namespace: a Redis database, by number or as resp/N")
	cmd.Flags().BoolVar(&f.hex, "hex", false, "keys are hexadecimal digits, two a byte")
}

// ValueResult is what put and get tell of a value with -o json.
type ValueResult struct {
	Key   string `json:"key"`   // text, or hexadecimal digits
	Hex   bool   `json:"hex"`   // key is hexadecimal digits
	Bytes int64  `json:"bytes"` // of the value (bytes)
	File  string `json:"file"`  // FILE or --to as given; empty with --text
}

func putCommand(a *command.App) *cobra.Command {
	var f keyFlags
	var text string
	cmd := &cobra.Command{
		Use: "put KEY FILE", Short: "put a file, standard input (-) or a text under a key",
		Long: `Puts the bytes of FILE, of standard input (-), or of --text under KEY, in place of what is there. What is
put is what Redis's GET finds in the database. The value appears when all of it is stored: a put that is
cut off changes nothing. A value has at most 512 MiB.`,
		Example: "  skep put greeting --text hello\n  skep put weights/7 part.bin\n  pg_dump kv | skep put dump -",
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("text") {
			return takes("a key beside --text", 1)(cmd, args)
		}
		return takes("a key, and a file (- is standard input) or --text", 2)(cmd, args)
	}
	f.register(cmd)
	cmd.Flags().StringVar(&text, "text", "", "the value itself")
	var in *os.File
	cmd = newCommand(a, cmd, func(ctx context.Context, r *remote, args []string) (err error) {
		k, err := keys(args[:1], f.hex)
		if err != nil {
			return err
		}
		var from io.Reader = strings.NewReader(text)
		switch {
		case in != nil:
			from = &interruptible{ctx: ctx, in: in}
		case len(args) == 2:
			from = &interruptible{ctx: ctx, in: r.In}
		}
		v, err := r.values(ctx, f.ns)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, v.Close()) }()
		n, err := v.Put(ctx, k[0], from)
		if err != nil {
			return err
		}
		res := ValueResult{Bytes: n}
		res.Key, res.Hex = shown(k[0], f.hex)
		if len(args) == 2 {
			res.File = args[1]
		}
		return r.Print(res, func(w io.Writer) { fmt.Fprintf(w, "%s: %d bytes\n", res.Key, n) })
	})
	connected := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if len(args) == 2 && args[1] != "-" { // a file that is not there is told before anybody is called
			if in, err = os.Open(args[1]); err != nil {
				return &skep.Error{Op: "put", Kind: skep.Invalid, Field: "FILE", Value: args[1],
					Limit: "a file that can be read, or - for standard input", Err: err}
			}
			defer in.Close()
			if st, err := in.Stat(); err == nil && st.IsDir() {
				return skep.Invalidf("put", "FILE", args[1]+", a directory", "a file")
			}
		}
		return connected(cmd, args)
	}
	return cmd
}

func getCommand(a *command.App) *cobra.Command {
	var f keyFlags
	var to string
	cmd := &cobra.Command{
		Use: "get KEY", Short: "write a key's value to standard output, or to a file",
		Long: `Writes the value of KEY, which put or Redis's SET stored, to standard output or to a file. The file
appears when all of it is written: a get that is cut off leaves none, and not a part of one. Every byte is compared
with its checksum. Exit code 3: there is no such key.`,
		Example: "  skep get greeting\n  skep get weights/7 --to part.bin",
		Args:    takes("a key", 1),
	}
	f.register(cmd)
	cmd.Flags().StringVar(&to, "to", "", "file to write to, in place of standard output")
	return newCommand(a, cmd, func(ctx context.Context, r *remote, args []string) (err error) {
		k, err := keys(args, f.hex)
		if err != nil {
			return err
		}
		if to == "/dev/stdout" {
			to = ""
		}
		if to == "" && r.JSON {
			return skep.Invalidf("get", "--to", "not given",
				"a file, where the output is JSON: the value itself is no JSON")
		}
		v, err := r.values(ctx, f.ns)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, v.Close()) }()
		res := ValueResult{File: to}
		res.Key, res.Hex = shown(k[0], f.hex)
		out := r.Out
		var file *newFile
		err = v.Get(ctx, k[0], func(size int64) (w io.Writer, err error) {
			if res.Bytes = size; to == "" {
				return out, nil
			}
			file, err = createFile(to)
			return file, err
		})
		if file != nil {
			if err = file.end(err); err == nil {
				return r.Print(res, func(w io.Writer) { fmt.Fprintf(w, "%s: %d bytes\n", to, res.Bytes) })
			}
			return err
		}
		if skep.KindOf(err) == skep.NotFound {
			next := "skep ls lists the keys; what was put may have been evicted to make room"
			if r.whole != nil {
				next += ", or be at a node that does not answer (skep cluster status)"
			}
			return command.WithNext(&skep.Error{Op: "get", Kind: skep.NotFound, Field: "key", Value: res.Key}, next)
		}
		if t, ok := r.Stdout().(*os.File); err == nil && ok && term.IsTerminal(int(t.Fd())) {
			fmt.Fprintln(out)
		}
		return err
	})
}

// newFile is a file that appears when all of it is written.
type newFile struct {
	*os.File
	path string // where it is to be; empty: it is written in place
}

// createFile makes the file beside the one that path leads to, with its owner and mode where it is there. It opens what
// path is where that is no file, as /dev/null, or where a process has it open, as /dev/fd/3: this is not put in its place
// anew.
func createFile(path string) (*newFile, error) {
	wrong := func(err error) error {
		return &skep.Error{Op: "get", Kind: skep.Invalid, Field: "--to", Value: path,
			Limit: "a file in a directory that can be written to", Err: err}
	}
	real, open, err := leadsTo(path)
	if err != nil {
		return nil, wrong(err)
	}
	st, err := os.Stat(real)
	there := err == nil
	if open || there && !st.Mode().IsRegular() {
		f, err := os.OpenFile(real, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return nil, wrong(err)
		}
		return &newFile{File: f}, nil
	}
	mode := os.FileMode(0o666)
	if there {
		mode = st.Mode().Perm()
	}
	var suffix [8]byte
	_, _ = rand.Read(suffix[:]) // it does not fail
	name := filepath.Join(filepath.Dir(real), ".skep-"+hex.EncodeToString(suffix[:]))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, wrong(err)
	}
	if there && runtime.GOOS != "windows" { // whatever the umask
		err := f.Chmod(mode)
		if err == nil {
			err = giveTo(f, st) // from then on its mode may be its owner's alone to change
		}
		if err != nil {
			return nil, wrong(errors.Join(err, f.Close(), os.Remove(f.Name())))
		}
	}
	return &newFile{f, real}, nil
}

// leadsTo is what links make of path, there or not, and whether it is what a process has open.
func leadsTo(path string) (real string, open bool, err error) {
	for range 40 {
		if os.IsPathSeparator(path[len(path)-1]) {
			return "", false, errors.New("it is a directory")
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return "", false, err
		}
		path = filepath.Join(dir, filepath.Base(path))
		if strings.HasPrefix(path, "/proc/") {
			return path, true, nil
		}
		to, err := os.Readlink(path)
		if err != nil { // it is none, or is not there
			return path, false, nil
		}
		if !filepath.IsAbs(to) {
			to = dir + string(filepath.Separator) + to
		}
		path = to
	}
	return "", false, errors.New("too many links")
}

// end puts the file in its place, or removes it where err says that it is not whole.
func (f *newFile) end(err error) error {
	if err == nil && f.path != "" {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if f.path == "" {
		return err
	}
	if err == nil {
		err = os.Rename(f.Name(), f.path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// DelResult is what del prints.
type DelResult struct {
	Deleted int `json:"deleted"` // keys that were there
	Asked   int `json:"asked"`   // keys that were named
}

func delCommand(a *command.App) *cobra.Command {
	var f keyFlags
	cmd := &cobra.Command{
		Use: "del KEY [KEY ...]", Short: "delete keys",
		Long: `Deletes keys with their values, and says how many were there. Exit code 3: none of them was.`,
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return takes("at least one key", 1)(cmd, args)
		}
		return nil
	}
	f.register(cmd)
	return newCommand(a, cmd, func(ctx context.Context, r *remote, args []string) (err error) {
		k, err := keys(args, f.hex)
		if err != nil {
			return err
		}
		v, err := r.values(ctx, f.ns)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, v.Close()) }()
		res := DelResult{Asked: len(args)}
		if res.Deleted, err = v.Delete(ctx, k); err != nil {
			return err
		}
		if res.Deleted == 0 {
			r.Code = command.NotFound
		}
		return r.Print(res, func(w io.Writer) { fmt.Fprintf(w, "%d of %d deleted\n", res.Deleted, res.Asked) })
	})
}

// KeyRow is one key as ls tells of it.
type KeyRow struct {
	Key     string `json:"key"`     // text, or hexadecimal digits
	Hex     bool   `json:"hex"`     // key is hexadecimal digits
	Bytes   int64  `json:"bytes"`   // of the value; -1: not known (bytes)
	Expires string `json:"expires"` // RFC 3339; empty: it does not
}

// ListResult is what ls prints.
type ListResult struct {
	Namespace string   `json:"namespace"` // --ns
	Keys      []KeyRow `json:"keys"`      // keys, at most --limit
	More      bool     `json:"more"`      // there are more than --limit
}

const mostListed = 1_000_000

func lsCommand(a *command.App) *cobra.Command {
	var f keyFlags
	limit := 0
	cmd := &cobra.Command{
		Use: "ls [PREFIX]", Short: "list keys, with the sizes of their values",
		Long: `Lists the keys of a Redis database, or those that begin with PREFIX, with the size of each value and when it
expires. A key is listed although its value was evicted since. Of another namespace (--ns NAME) it lists the keys of
blocks, in hexadecimal. skep keeps no times of puts, so there is no age.`,
		Args: takes("at most a prefix", 0, 1),
	}
	f.register(cmd)
	cmd.Flags().IntVar(&limit, "limit", 1000, "keys at most")
	return newCommand(a, cmd, func(ctx context.Context, r *remote, args []string) (err error) {
		if limit < 1 || limit > mostListed {
			return skep.Invalidf("ls", "--limit", limit, fmt.Sprintf("1 to %d", mostListed))
		}
		prefix, err := keys(args, f.hex)
		if err != nil {
			return err
		}
		res := ListResult{Namespace: f.ns, Keys: []KeyRow{}}
		n := 0
		add := func(k []byte, row KeyRow) bool {
			if n++; n > limit {
				res.More = true
				return false
			}
			row.Key, row.Hex = shown(k, f.hex)
			if r.Lines {
				return r.row(row) == nil
			}
			res.Keys = append(res.Keys, row)
			return true
		}
		if _, ok := databaseOf(f.ns); ok {
			err = r.listValues(ctx, f.ns, prefix, add)
		} else {
			err = r.listBlocks(ctx, f.ns, prefix, func(k []byte) bool { return add(k, KeyRow{Bytes: -1}) })
		}
		if err != nil {
			return err
		}
		if res.More {
			r.Note("there are more: --limit %d", limit)
		}
		if r.Lines {
			return nil
		}
		slices.SortFunc(res.Keys, func(x, y KeyRow) int { return strings.Compare(x.Key, y.Key) })
		return r.Print(res, func(w io.Writer) { listText(w, res.Keys) })
	})
}

func (r *remote) listValues(ctx context.Context, ns string, prefix [][]byte,
	add func([]byte, KeyRow) bool) (err error) {
	v, err := r.values(ctx, ns)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	return v.List(ctx, slices.Concat(prefix...), func(e resp.Entry) bool {
		row := KeyRow{Bytes: e.Bytes}
		if !e.Expires.IsZero() {
			row.Expires = e.Expires.UTC().Format(time.RFC3339)
		}
		return add(e.Key, row)
	})
}

// listBlocks lists the keys of blocks. prefix is of their bytes.
func (r *remote) listBlocks(ctx context.Context, ns string, prefix [][]byte, add func([]byte) bool) error {
	info, err := r.find(ctx, r.c, ns)
	if err != nil {
		return err
	}
	for from, more := uint64(0), true; more; more = from != 0 {
		var list []skep.Key
		if list, from, err = r.c.ListKeys(ctx, info.ID, from, 4096); err != nil {
			return err
		}
		for _, k := range list {
			if strings.HasPrefix(string(k[:]), string(slices.Concat(prefix...))) && !add(k[:]) {
				return nil
			}
		}
	}
	return nil
}

func listText(w io.Writer, list []KeyRow) {
	rows := [][]string{{"KEY", "BYTES", "EXPIRES"}}
	for _, k := range list {
		size, expires := "-", "-"
		if k.Bytes >= 0 {
			size = fmt.Sprint(k.Bytes)
		}
		if k.Expires != "" {
			expires = k.Expires
		}
		name := k.Key
		if k.Hex {
			name = "hex " + name
		}
		rows = append(rows, command.Row(name, size, expires))
	}
	command.Table(w, rows...)
}
