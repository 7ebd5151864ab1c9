package main

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/skepkv/skep/tools/internal/cli"
	"github.com/skepkv/skep/tools/internal/lab"
)

const (
	schemaDir = "docs/reference/schema/"
	module    = "github.com/skepkv/skep"
)

// schemas are the JSON Schemas of what commands print with --json, by path from the root, and what makes each.
func schemas() map[string]func(root string) (string, error) {
	results := maps.Clone(cli.Results)
	maps.Copy(results, lab.Results)
	out := map[string]func(string) (string, error){}
	for name, result := range results {
		out[schemaDir+strings.ReplaceAll(name, " ", "-")+".json"] = func(root string) (string, error) {
			return schemaOf(root, name, reflect.TypeOf(result))
		}
	}
	return out
}

// schema is one in the words of JSON Schema.
type schema struct {
	Dialect     string     `json:"$schema,omitempty"`
	Title       string     `json:"title,omitempty"`
	Description string     `json:"description,omitempty"`
	Type        any        `json:"type"` // a string or several
	Format      string     `json:"format,omitempty"`
	Properties  properties `json:"properties,omitempty"`
	Required    []string   `json:"required,omitempty"`
	Items       *schema    `json:"items,omitempty"`
	Values      *schema    `json:"additionalProperties,omitempty"` // of a map
}

type property struct {
	name   string
	schema *schema
}

// properties are an object's in the order of the fields, which their descriptions count on.
type properties []property

// MarshalJSON writes an object.
func (p properties) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range p {
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		var value bytes.Buffer
		e := json.NewEncoder(&value)
		e.SetEscapeHTML(false)
		if err := e.Encode(m.schema); err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s:%s", name, value.Bytes())
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// schemaOf is the schema of what the command of that name prints, which is of type t.
func schemaOf(root, name string, t reflect.Type) (string, error) {
	w := schemaWriter{root: root, comments: map[string]map[string]string{}}
	s, err := w.of(t)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	s.Dialect, s.Title = "https://json-schema.org/draft/2020-12/schema", name
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err = e.Encode(s)
	return b.String(), err
}

// schemaWriter makes schemas of types, and reads what their fields mean in the sources below root.
type schemaWriter struct {
	root     string
	comments map[string]map[string]string // by package, then by type and field
}

var texter, clock = reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[time.Time]()

func (w *schemaWriter) of(t reflect.Type) (*schema, error) {
	switch kind := t.Kind(); {
	case t == clock:
		return &schema{Type: "string", Format: "date-time"}, nil
	case t.Implements(texter):
		return &schema{Type: "string"}, nil
	case t.Implements(reflect.TypeFor[json.Marshaler]()):
		return nil, fmt.Errorf("%v writes its JSON itself", t)
	case kind == reflect.String:
		return &schema{Type: "string"}, nil
	case kind == reflect.Bool:
		return &schema{Type: "boolean"}, nil
	case kind >= reflect.Int && kind <= reflect.Uint64:
		return &schema{Type: "integer"}, nil
	case kind == reflect.Float32 || kind == reflect.Float64:
		return &schema{Type: "number"}, nil
	case kind == reflect.Pointer:
		s, err := w.of(t.Elem())
		if err == nil {
			s.Type = []any{s.Type, "null"}
		}
		return s, err
	case kind == reflect.Slice:
		items, err := w.of(t.Elem())
		return &schema{Type: []any{"array", "null"}, Items: items}, err
	case kind == reflect.Array:
		items, err := w.of(t.Elem())
		return &schema{Type: "array", Items: items}, err
	case kind == reflect.Map && t.Key().Kind() == reflect.String:
		values, err := w.of(t.Elem())
		return &schema{Type: []any{"object", "null"}, Values: values}, err
	case kind == reflect.Struct:
		s := &schema{Type: "object"}
		return s, w.fields(s, t)
	}
	return nil, fmt.Errorf("there is no schema for %v", t)
}

// fields adds those of the struct t to s.
func (w *schemaWriter) fields(s *schema, t reflect.Type) error {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			if err := w.fields(s, f.Type); err != nil {
				return err
			}
			continue
		case name == "-" || !f.IsExported():
			continue
		case name == "":
			name = f.Name
		}
		value, err := w.of(f.Type)
		if err != nil {
			return fmt.Errorf("%v.%s: %w", t, f.Name, err)
		}
		if value.Description, err = w.comment(t, f.Name); err != nil {
			return err
		}
		if !strings.Contains(options, "omitempty") && !strings.Contains(options, "omitzero") {
			s.Required = append(s.Required, name)
		}
		s.Properties = append(s.Properties, property{name, value})
	}
	return nil
}

// comment is what stands behind the field of that name, or else above it. There has to be one.
func (w *schemaWriter) comment(t reflect.Type, field string) (string, error) {
	of, ok := w.comments[t.PkgPath()]
	if !ok {
		var err error
		dir := strings.TrimPrefix(strings.TrimPrefix(t.PkgPath(), module), "/")
		if of, err = commentsIn(filepath.Join(w.root, filepath.FromSlash(dir))); err != nil {
			return "", err
		}
		w.comments[t.PkgPath()] = of
	}
	c := of[t.Name()+"."+field]
	if c == "" {
		return "", fmt.Errorf("%v.%s has no comment that says what it means", t, field)
	}
	return c, nil
}

// commentsIn are the comments of fields in a package, by type and field.
func commentsIn(dir string) (map[string]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, name := range names {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			st, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, f := range st.Fields.List {
				c := strings.Join(strings.Fields(f.Comment.Text()), " ")
				if c == "" {
					c = strings.Join(strings.Fields(f.Doc.Text()), " ")
				}
				for _, name := range f.Names {
					out[spec.Name.Name+"."+name.Name] = c
				}
			}
			return true
		})
	}
	return out, nil
}
