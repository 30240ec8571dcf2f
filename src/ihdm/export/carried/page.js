// Samples from an exported model with onnxruntime-web alone; all it needs is chain.json, start.onnx and step.onnx.

const VERSION = 1; // of chain.json
const RUNTIME = "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";
const ROWS = 4, COLUMNS = 4, IMAGES = ROWS * COLUMNS;

const part = (name) => document.querySelector(name);

/** Uniform numbers in [0, 1) for one image, by the generator sfc32 (Doty-Humphrey), from seed and image alone. */
export function chance(seed, image) {
  let a = seed | 0, b = image | 0, c = 0x9e3779b9 | 0, counter = 1;
  const next = () => {
    const sum = (((a + b) | 0) + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (((c << 21) | (c >>> 11)) + sum) | 0;
    return (sum >>> 0) / 2 ** 32;
  };
  for (let n = 0; n < 15; n++) next();
  return next;
}

/** Standard normal noise for all images, `size` numbers each, by the Box-Muller transform. */
export function normal(chances, size) {
  const eps = new Float32Array(chances.length * size);
  chances.forEach((next, image) => {
    for (let n = 0; n < size; n++) {
      eps[image * size + n] = Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next());
    }
  });
  return eps;
}

/** A whole number for each image, which chooses one of the model's starts. */
export function choices(chances) {
  return BigInt64Array.from(chances, (next) => BigInt(Math.floor(next() * 2 ** 31)));
}

/** The number of a label for each image, drawn in the proportions of the training set. */
export function labels(chances, counts) {
  const total = counts.reduce((a, b) => a + b);
  return BigInt64Array.from(chances, (next) => {
    let place = Math.floor(next() * total), number = 0;
    while (place >= counts[number]) place -= counts[number++];
    return BigInt(number);
  });
}

/** What else programs take if the model knows labels: the label of each image (drawn unless given) and the guidance. */
function told({ ort, about }, chances, { label, guidance }) {
  if (!about.labels) return [() => ({}), () => ({})];
  const numbers = labels(chances, about.counts); // drawn in any case, so that all else is the same with a given label
  if (label !== null) numbers.fill(BigInt(label));
  const atStart = () => ({ label: new ort.Tensor("int64", numbers.slice(), [IMAGES]) }); // new ones: a run uses them up
  return [atStart, () => ({ ...atStart(), guidance: new ort.Tensor("float32", Float32Array.of(guidance), []) })];
}

/** Go along the chain and show the images after each step. wanted: a label's number (null for any) and the guidance. */
async function grow(model, seed, wanted, show) {
  const { ort, about, start, step } = model;
  const chances = Array.from({ length: IMAGES }, (_, image) => chance(seed, image));
  const size = about.shape.reduce((a, b) => a * b);
  const level = (k) => new ort.Tensor("int64", BigInt64Array.of(BigInt(k)), []);
  const noise = () => new ort.Tensor("float32", normal(chances, size), [IMAGES, ...about.shape]);
  const [atStart, inSteps] = told(model, chances, wanted);
  const choice = new ort.Tensor("int64", choices(chances), [IMAGES]);
  let { state, image } = await start.run({ choice, eps: noise(), ...atStart() });
  await show(image.data, 0);
  for (const [done, [k, j, i]] of about.steps.entries()) {
    const levels = { k: level(k), j: level(j), i: level(i) };
    ({ next: state, image } = await step.run({ state, ...levels, eps: noise(), ...inSteps() }));
    await show(image.data, done + 1);
  }
}

/** Draw images (C, H, W) in [0, 1], one or three channels, in rows. */
function draw(values, [channels, height, width]) {
  const canvas = part("canvas"), picture = new ImageData(COLUMNS * width, ROWS * height);
  [canvas.width, canvas.height] = [picture.width, picture.height];
  for (let n = 0; n < IMAGES; n++) {
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const place = 4 * ((Math.floor(n / COLUMNS) * height + y) * picture.width + (n % COLUMNS) * width + x);
        for (let c = 0; c < 3; c++) {
          const from = ((n * channels + Math.min(c, channels - 1)) * height + y) * width + x;
          picture.data[place + c] = Math.round(255 * values[from]);
        }
        picture.data[place + 3] = 255;
      }
    }
  }
  canvas.getContext("2d").putImageData(picture, 0, 0);
}

async function load() {
  const ort = await import(RUNTIME).catch(() => {
    throw new Error("onnxruntime-web is not in this folder: npm install --prefix FOLDER onnxruntime-web@1.30.0");
  });
  ort.env.wasm.proxy = true; // in a worker, so that the page stays responsive
  const about = await (await fetch("chain.json")).json();
  if (about.export !== VERSION) {
    throw new Error(`this page is for exports of version ${VERSION}, and chain.json is of version ${about.export}`);
  }
  const [start, step] = [await ort.InferenceSession.create("start.onnx"), await ort.InferenceSession.create("step.onnx")];
  return { ort, about, start, step };
}

function say(words) {
  part("#status").textContent = words;
}

/** A button for each label and one for any, each of which grows images at once. Without labels there are no buttons. */
function offer(names) {
  part("fieldset").hidden = part("#guidance").parentElement.hidden = !names.length;
  const buttons = (names.length ? ["any", ...names] : []).map((name, place) => {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: name, value: place - 1, ariaPressed: place === 0 });
    button.addEventListener("click", () => {
      buttons.forEach((other) => (other.ariaPressed = other === button));
      part("form").requestSubmit();
    });
    return button;
  });
  part("fieldset").append(...buttons);
  const pressed = () => Number(buttons.find((button) => button.ariaPressed === "true")?.value ?? -1);
  return () => ({ label: pressed() < 0 ? null : pressed(), guidance: part("#guidance").valueAsNumber });
}

async function main() {
  const model = await load(), total = model.about.steps.length, wanted = offer(model.about.labels ?? []);
  part("#about").textContent = `By ${model.about.model}, ${model.about.sampling}. ${part("#about").textContent}`;
  const work = async () => {
    const began = performance.now();
    part("#grow").disabled = part("fieldset").disabled = true;
    await grow(model, part("#seed").valueAsNumber, wanted(), async (values, done) => {
      draw(values, model.about.shape);
      say(`step ${done} of ${total}`);
      await new Promise(requestAnimationFrame); // so that the step is seen
    });
    say(`${IMAGES} images in ${((performance.now() - began) / 1000).toFixed(1)} s. Another seed gives others.`);
    part("#grow").disabled = part("fieldset").disabled = false;
  };
  part("form").addEventListener("submit", (event) => {
    event.preventDefault();
    work().catch(fail);
  });
  await work();
}

function fail(error) {
  say(`It did not work: ${error.message}`);
}

main().catch(fail);
