package httpapi

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"time"
)

type object = map[string]any

// document is the OpenAPI document of operations. Schemas are read off the Go types,
// so that it cannot say other than what is sent.
func document(list []operation) ([]byte, error) {
	schemas := object{}
	s := schemer{schemas}
	failure := s.of(reflect.TypeFor[Failure]())
	paths := object{}
	for _, op := range list {
		entry := object{
			"operationId": op.id,
			"summary":     op.doc,
			"responses": object{
				"200":     object{"description": "done", "content": jsonContent(s.of(reflect.TypeOf(op.result)))},
				"default": object{"description": "what was wrong", "content": jsonContent(failure)},
			},
		}
		if names := op.need.Names(); len(names) > 0 {
			entry["description"] = "Needs the right " + strings.Join(names, " and ") + "."
		}
		var params []object
		for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(op.path, -1) {
			params = append(params, object{"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"}})
		}
		for name, doc := range op.query {
			params = append(params, object{"name": name, "in": "query", "description": doc, "schema": object{"type": "integer"}})
		}
		if params != nil {
			entry["parameters"] = params
		}
		if op.body != nil {
			entry["requestBody"] = object{"required": reflect.TypeOf(op.body).NumField() > 0, "content": jsonContent(s.of(reflect.TypeOf(op.body)))}
		}
		at, _ := paths[op.path].(object)
		if at == nil {
			at = object{}
			paths[op.path] = at
		}
		at[strings.ToLower(op.method)] = entry
	}
	return json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info":    object{"title": "skep", "version": "1", "description": "A skep server: what it holds, what it does, and what an operator may ask of it."},
		"paths":   paths,
		"components": object{
			"schemas": schemas,
			"securitySchemes": object{
				"token": object{"type": "http", "scheme": "bearer"},
				"basic": object{"type": "http", "scheme": "basic", "description": "the token as password, any user"},
				"mtls":  object{"type": "mutualTLS"},
			},
		},
		"security": []object{{"token": []string{}}, {"basic": []string{}}, {"mtls": []string{}}, {}},
	}, "", "  ")
}

func jsonContent(schema object) object {
	return object{"application/json": object{"schema": schema}}
}

// schemer makes JSON schemas of Go types, named structs once.
type schemer struct{ named object }

func (s schemer) of(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[HexKey]():
		return object{"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Slice:
		return object{"type": []string{"array", "null"}, "items": s.of(t.Elem())}
	case reflect.Map:
		return object{"type": []string{"object", "null"}, "additionalProperties": s.of(t.Elem())}
	case reflect.Struct:
		return s.structure(t)
	}
	return object{"type": "integer"}
}

func (s schemer) structure(t reflect.Type) object {
	if t.Name() == "" {
		return s.body(t)
	}
	if _, ok := s.named[t.Name()]; !ok {
		s.named[t.Name()] = object{} // a type may hold itself
		s.named[t.Name()] = s.body(t)
	}
	return object{"$ref": "#/components/schemas/" + t.Name()}
}

func (s schemer) body(t reflect.Type) object {
	properties := object{}
	required := []string{}
	var walk func(t reflect.Type)
	walk = func(t reflect.Type) {
		for i := range t.NumField() {
			f := t.Field(i)
			name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Anonymous && name == "":
				walk(f.Type)
				continue
			case !f.IsExported() || name == "-":
				continue
			case name == "":
				name = f.Name
			}
			properties[name] = s.of(f.Type)
			if !strings.Contains(opts, "omitempty") {
				required = append(required, name)
			}
		}
	}
	walk(t)
	o := object{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		o["required"] = required
	}
	return o
}
