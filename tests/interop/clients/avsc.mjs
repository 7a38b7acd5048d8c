// Takes the place of the npm package avsc, which is not installed for tests: as much of it as README.md uses, for records,
// strings, longs, bytes, and unions with null. Whether the bytes are right the gateway judges.
const zigzag = (number) => {
  const bytes = [];
  for (let rest = BigInt.asUintN(64, (BigInt(number) << 1n) ^ (BigInt(number) >> 63n)); ; rest >>= 7n) {
    if (rest < 128n) return Buffer.from([...bytes, Number(rest)]);
    bytes.push(Number(rest & 127n) | 128);
  }
};

const readLong = (at) => {
  let result = 0n;
  for (let shift = 0n; ; shift += 7n) {
    const byte = at.bytes[at.place++];
    result |= BigInt(byte & 127) << shift;
    if (byte < 128) return Number((result >> 1n) ^ -(result & 1n));
  }
};

const readBytes = (at) => {
  const length = readLong(at);
  at.place += length;
  return at.bytes.subarray(at.place - length, at.place);
};

const PRIMITIVES = {
  long: { write: zigzag, read: readLong },
  bytes: { write: (value) => Buffer.concat([zigzag(value.length), value]), read: readBytes },
  string: { write: (value) => PRIMITIVES.bytes.write(Buffer.from(value)), read: (at) => readBytes(at).toString() },
};

function typeOf(schema, registry) {
  if (typeof schema === 'string') return PRIMITIVES[schema] ?? registry[schema];
  if (Array.isArray(schema)) {
    const some = typeOf(schema[1], registry); // ["null", something]
    return {
      write: (value) => (value === null ? zigzag(0) : Buffer.concat([zigzag(1), some.write(value)])),
      read: (at) => (readLong(at) === 0 ? null : some.read(at)),
    };
  }
  if (schema.type !== 'record') return typeOf(schema.type, registry);
  const fields = schema.fields.map(({ name, type }) => [name, typeOf(type, registry)]);
  const record = {
    write: (value) => Buffer.concat(fields.map(([name, type]) => type.write(value[name]))),
    read: (at) => Object.fromEntries(fields.map(([name, type]) => [name, type.read(at)])),
    toBuffer: (value) => record.write(value),
    fromBuffer: (bytes) => record.read({ bytes, place: 0 }),
  };
  registry[schema.name] = registry[`${schema.namespace}.${schema.name}`] = record; // one namespace is all that there is
  return record;
}

export default { Type: { forSchema: (schema, { registry }) => typeOf(schema, registry) } };
