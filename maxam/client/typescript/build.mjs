// Build the package: `node build.mjs [--out FOLDER]` makes dist/, and `node build.mjs --tests [--out FOLDER]` makes build/tests/.
// `node build.mjs --example --out FOLDER` builds the page of docs/examples/floor. Two builds give equal bytes.

import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { build } from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));
process.chdir(here);
const { values } = parseArgs({
  options: { out: { type: "string" }, tests: { type: "boolean" }, example: { type: "boolean" } },
});
const common = { absWorkingDir: here, bundle: true, format: "esm", target: "es2022", charset: "utf8", logLevel: "warning" };

if (values.tests) {
  const out = values.out ?? "build/tests";
  rmSync(out, { recursive: true, force: true });
  const tests = readdirSync("test").filter((name) => /\.(test|program)\.ts$/.test(name));
  await build({
    ...common,
    platform: "node",
    sourcemap: "inline",
    entryPoints: tests.map((name) => join("test", name)),
    outdir: out,
    outExtension: { ".js": ".mjs" },
  });
  await build({
    ...common,
    format: "iife",
    platform: "browser",
    define: { "process.env.NODE_ENV": '"development"' },
    entryPoints: ["test/react.page.ts"],
    outdir: out,
  });
} else if (values.example) {
  const out = values.out ?? "build/floor";
  const page = "../../../docs/examples/floor";
  const { outputFiles } = await build({
    ...common,
    platform: "browser",
    minify: true,
    legalComments: "none",
    alias: { "@maxam/client": "./src/index.ts" },
    entryPoints: [join(page, "floor.ts"), join(page, "floor.css")],
    outdir: out,
    write: false,
  });
  // One file, so that a browser needs one request. Nothing else may run: the policy has the hash of each part.
  const text = (name) => outputFiles.find(({ path }) => path.endsWith(name)).text.trim();
  const hash = (name) => `'sha256-${createHash("sha256").update(text(name)).digest("base64")}'`;
  const policy =
    `default-src 'none'; connect-src 'self'; img-src data:; script-src ${hash("floor.js")}; ` +
    `style-src ${hash("floor.css")}`;
  const html = readFileSync(join(page, "index.html"), "utf8")
    .replace("<head>", () => `<head>\n    <meta http-equiv="content-security-policy" content="${policy}">`)
    .replace(/<link rel="stylesheet".*>/, () => `<style>${text("floor.css")}</style>`)
    .replace(/<script.*><\/script>/, () => `<script type="module">${text("floor.js")}</script>`);
  mkdirSync(out, { recursive: true });
  writeFileSync(join(out, "index.html"), html);
} else {
  const out = values.out ?? "dist";
  rmSync(out, { recursive: true, force: true });
  await build({
    ...common,
    platform: "neutral",
    splitting: true, // all entry points share one class of errors
    external: ["react", "node:*"],
    minifySyntax: true,
    minifyWhitespace: true,
    minifyIdentifiers: true,
    keepNames: false,
    legalComments: "none",
    entryPoints: ["src/index.ts", "src/react.ts", "src/node.ts"],
    outdir: out,
  });
  const tsc = join("node_modules", ".bin", "tsc");
  const types = ["--noEmit", "false", "--emitDeclarationOnly", "--declaration", "--stripInternal"];
  execFileSync(tsc, [...types, "--outDir", out, "--project", "tsconfig.build.json"], { stdio: "inherit" });
  for (const name of readdirSync(out).filter((one) => one.endsWith(".d.ts"))) {
    const path = join(out, name);
    writeFileSync(path, readFileSync(path, "utf8").replaceAll(/(from ")(\.\/[\w-]+)\.ts"/g, '$1$2.js"'));
  }
}
