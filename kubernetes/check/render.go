// Renders a Helm chart's templates with the part of Helm's functions that the chart uses.
// Input: JSON with the keys templates (name to text) and data (Values, Release, Chart, Files); output: YAML.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/template"
)

type files map[string]string

func (f files) Get(name string) string { return f[name] }

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func toJSON(value any) (string, error) {
	text, err := json.Marshal(value)
	return string(text), err
}

func main() {
	var input struct {
		Templates map[string]string
		Data      map[string]any
		Files     files
	}
	decoder := json.NewDecoder(os.Stdin)
	decoder.UseNumber()
	must(decoder.Decode(&input))
	input.Data["Files"] = input.Files
	root := template.New("chart").Option("missingkey=error")
	root.Funcs(template.FuncMap{
		"add": func(a json.Number, b int64) (int64, error) { n, err := a.Int64(); return n + b, err },
		"dict": func(p ...any) map[string]any {
			d := map[string]any{}
			for i := 0; i < len(p); i += 2 {
				d[p[i].(string)] = p[i+1]
			}
			return d
		},
		"include": func(name string, data any) (string, error) {
			var b strings.Builder
			err := root.ExecuteTemplate(&b, name, data)
			return b.String(), err
		},
		"list": func(items ...any) []any { return items },
		"nindent": func(n int, s string) string {
			p := "\n" + strings.Repeat(" ", n)
			return p + strings.ReplaceAll(s, "\n", p)
		},
		"quote": func(value any) string { return fmt.Sprintf("%q", fmt.Sprint(value)) },
		"ternary": func(yes, no any, test bool) any {
			if test {
				return yes
			}
			return no
		},
		"toJson": toJSON,
		"toYaml": toJSON, // JSON is YAML
	})
	for name, text := range input.Templates {
		_, err := root.New(name).Parse(text)
		must(err)
	}
	for name := range input.Templates {
		if !strings.HasPrefix(name, "_") {
			fmt.Println("---")
			must(root.ExecuteTemplate(os.Stdout, name, input.Data))
		}
	}
}
