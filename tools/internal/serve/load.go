package serve

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memory"
)

// field is one value of a Config.
type field struct {
	path string // "tls.cert"
	flag string // "" when it has none
	doc  string
	v    reflect.Value
}

func (f field) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(f.path, ".", "_"))
}

// fields lists a Config's plain values in order; lists of structs and maps are the
// file's alone.
func fields(c *Config) []field {
	var out []field
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			t := v.Type().Field(i)
			if !t.IsExported() {
				continue
			}
			f := field{path: prefix + yamlName(t), flag: t.Tag.Get("flag"), doc: t.Tag.Get("doc"), v: v.Field(i)}
			switch t.Type.Kind() {
			case reflect.Struct:
				walk(f.path+".", f.v)
			case reflect.Map:
			case reflect.Slice:
				if t.Type.Elem().Kind() == reflect.String {
					out = append(out, f)
				}
			default:
				out = append(out, f)
			}
		}
	}
	walk("", reflect.ValueOf(c).Elem())
	return out
}

func yamlName(t reflect.StructField) string {
	name, _, _ := strings.Cut(t.Tag.Get("yaml"), ",")
	return name
}

// set reads a value from text.
func (f field) set(text string) error {
	if s, ok := f.v.Addr().Interface().(interface{ Set(string) error }); ok {
		return s.Set(text)
	}
	var err error
	switch f.v.Kind() {
	case reflect.String:
		f.v.SetString(text)
	case reflect.Bool:
		var b bool
		b, err = strconv.ParseBool(text)
		f.v.SetBool(b)
	case reflect.Int:
		var n int
		n, err = strconv.Atoi(text)
		f.v.SetInt(int64(n))
	case reflect.Float64:
		var x float64
		x, err = strconv.ParseFloat(text, 64)
		f.v.SetFloat(x)
	case reflect.Slice:
		list := []string{}
		for _, s := range strings.Split(text, ",") {
			if s = strings.TrimSpace(s); s != "" {
				list = append(list, s)
			}
		}
		f.v.Set(reflect.ValueOf(list))
	}
	if err != nil {
		return fmt.Errorf("%q is not a %s", text, f.v.Kind())
	}
	return nil
}

// MaxFileBytes is the largest configuration file.
const MaxFileBytes = 1 << 20

// Load makes a configuration of defaults, a file (path "": none), an environment as os.Environ gives it, and
// flags by field path. Relative paths are so to the file's directory where the file has them, else to that of the
// process. What is wrong is all in the error. Defaults of sizes follow the memory that the process's control group
// has.
func Load(path string, environ []string, flags map[string]string) (*Config, error) {
	return loadWithin(memory.Limit(), path, environ, flags)
}

func loadWithin(limit int64, path string, environ []string, flags map[string]string) (*Config, error) {
	c := Default()
	c.fit(limit)
	var wrong []error
	if path != "" {
		text, err := readFile(path, MaxFileBytes)
		if err != nil {
			return nil, err
		}
		wrong = append(wrong, c.merge(path, text)...)
		c.from(filepath.Dir(path))
	}
	vars := variables(environ)
	wrong = append(wrong, c.misnamed(vars)...)
	for _, f := range fields(c) {
		if text, ok := vars[f.env()]; ok {
			if err := f.set(text); err != nil {
				wrong = append(wrong, &skep.Error{Op: "settings", Kind: skep.Invalid, Field: f.env(), Err: err})
			}
		}
	}
	for _, f := range fields(c) {
		if text, ok := flags[f.path]; ok {
			if err := f.set(text); err != nil {
				wrong = append(wrong, &skep.Error{Op: "settings", Kind: skep.Invalid, Field: "--" + f.flag, Err: err})
			}
		}
	}
	wrong = append(wrong, c.countDevices()...)
	wrong = append(wrong, c.listenAsNode()...)
	wrong = append(append(wrong, c.problems()...), c.tooLarge(limit)...)
	return c, errors.Join(wrong...)
}

// countDevices takes a number of devices, as it was written once, for file_devices.
func (c *Config) countDevices() []error {
	n, ok := c.Devices.number()
	if !ok {
		return nil
	}
	if n == 0 {
		return []error{problem("devices", n, "paths, or a number as of file_devices: 1 or more")}
	}
	c.Devices, c.counted = Paths{}, true
	if c.FileDevices == 0 {
		c.FileDevices = n
	}
	return nil
}

// merge reads YAML over c, unless there is too much of it.
func (c *Config) merge(name string, text []byte) (wrong []error) {
	e := measure(text)
	if err := e.check(name); err != nil {
		return []error{err}
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	err := d.Decode(c)
	var types *yaml.TypeError
	switch {
	case err == nil || errors.Is(err, io.EOF):
		if err == nil && d.Decode(new(yaml.Node)) != io.EOF {
			wrong = append(wrong, skep.Invalidf("settings", name, "several documents", "one"))
		}
	case errors.As(err, &types):
		for _, e := range types.Errors {
			wrong = append(wrong, &skep.Error{Op: "settings", Kind: skep.Invalid, Field: name, Err: errors.New(c.unknown(e))})
		}
	default:
		wrong = append(wrong, &skep.Error{Op: "settings", Kind: skep.Invalid, Field: name, Err: err})
	}
	return firstOf(name, wrong)
}

var unknownField = regexp.MustCompile(`^(line \d+): field (\S+) not found in type .*$`)

// unknown is what is said of a setting that there is not; a flag's name names the setting.
func (c *Config) unknown(text string) string {
	m := unknownField.FindStringSubmatch(text)
	if m == nil {
		return text
	}
	text = m[1] + ": there is no setting " + m[2] + " here"
	for _, f := range fields(c) {
		if f.flag == m[2] || f.path == m[2] || strings.HasSuffix(f.path, "."+m[2]) {
			if !strings.Contains(f.path, ".") {
				return text + "; it is " + f.path + ", at the top"
			}
			return text + "; it is " + f.path
		}
	}
	return text + "; skep config show shows all"
}

// filePatience is how long a pipe that is named as a file may keep its reader waiting.
const filePatience = 30 * time.Second

// openFile opens a file to be read. Of a pipe it does not wait for a writer, who may never come: a reload would wait for
// ever, and a server that is to end with it. One without a writer is empty.
func openFile(path string) (*os.File, error) {
	flags := os.O_RDONLY
	if runtime.GOOS == "linux" { // elsewhere not every pipe can be waited for so
		flags |= syscall.O_NONBLOCK
	}
	f, err := os.OpenFile(path, flags, 0)
	if err == nil {
		_ = f.SetReadDeadline(time.Now().Add(filePatience)) // of other files there is none
	}
	return f, err
}

// readFile reads a file of at most limit bytes.
func readFile(path string, limit int64) ([]byte, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = skep.Invalidf("settings", path+", bytes", fmt.Sprintf("over %d", limit), fmt.Sprintf("at most %d", limit))
	}
	if info, bad := f.Stat(); err == nil && bad == nil && len(b) == 0 && info.Mode()&fs.ModeNamedPipe != 0 {
		err = skep.Invalidf("settings", path+", bytes", 0, "at least 1: nobody has written to this pipe yet")
	}
	return b, err
}

// Print writes c as a file that Load reads wherever it lies, each value under what it means.
func (c *Config) Print(w io.Writer) error {
	c, err := c.absolute()
	if err != nil {
		return err
	}
	var node yaml.Node
	if err := node.Encode(c); err != nil {
		return err
	}
	comment(&node, reflect.TypeOf(*c))
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	defer e.Close()
	return e.Encode(&node)
}

// comment puts each field's doc over its key.
func comment(n *yaml.Node, t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		for j := 0; j+1 < len(n.Content); j += 2 {
			key, value := n.Content[j], n.Content[j+1]
			if key.Value != yamlName(f) {
				continue
			}
			key.HeadComment = f.Tag.Get("doc")
			if f.Type.Kind() == reflect.Struct && value.Kind == yaml.MappingNode {
				comment(value, f.Type)
			}
		}
	}
}

// FlagOf is a flag of skep serve that sets a field.
type FlagOf struct {
	Name, Path, Default, Doc string
	Switch                   bool // its value may be left out: true
	List                     bool // it may be given several times
}

// Flags lists the fields that have flags.
func Flags() []FlagOf {
	var out []FlagOf
	for _, f := range fields(Default()) {
		if f.flag != "" {
			k := f.v.Kind()
			out = append(out, FlagOf{f.flag, f.path, fmt.Sprint(f.v.Interface()), f.doc, k == reflect.Bool, k == reflect.Slice})
		}
	}
	return out
}
