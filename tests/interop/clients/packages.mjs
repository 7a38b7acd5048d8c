// Lets programs of other folders find the packages of this one: `node --import packages.mjs PROGRAM`.
import { register } from 'node:module';

const here = JSON.stringify(import.meta.url);
const hooks = `export const resolve = (name, context, next) =>
  next(name, /^(node:|[./]|file:)/.test(name) || context.parentURL?.includes('/node_modules/') ? context : { ...context, parentURL: ${here} });`;
register(`data:text/javascript,${encodeURIComponent(hooks)}`);
